// Bundles the page into dist/.
import { build } from 'esbuild';
import { copyFile, mkdir } from 'node:fs/promises';

await build({
  entryPoints: ['page.jsx'],
  outdir: 'dist',
  bundle: true,
  format: 'esm',
  // The code editor of @grafana/ui is a chunk of its own then, which the page does not load.
  splitting: true,
  external: ['monaco-editor'],
  jsx: 'automatic',
  minify: true,
  // Code of @grafana/ui that runs in no test of ours reads these.
  define: { 'process.env.NODE_ENV': '"production"', global: 'globalThis' },
  logLevel: 'warning',
});
await copyFile('index.html', 'dist/index.html');
// The global styles of @grafana/ui load the font from here; Grafana's server has it, the package has not.
await mkdir('dist/public/fonts/inter', { recursive: true });
for (const [weight, name] of Object.entries({ 400: 'Regular', 500: 'Medium' })) {
  await copyFile(
    `node_modules/@fontsource/inter/files/inter-latin-${weight}-normal.woff2`,
    `dist/public/fonts/inter/Inter-${name}.woff2`
  );
}

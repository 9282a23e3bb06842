// Draws dashboard.json, which lies beside the page, with the answers of a Prometheus.
// Each variable has its value for "All". The page's address has the parameters from and to, in milliseconds, as
// Grafana's has, and: prometheus, its path on this server; scrape, the time between two scrapes, such as "15s".
import { createTheme, dateTime, ThemeContext } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

import { Panel } from './panel.jsx';
import { Prometheus } from './prometheus.js';
import { report } from './report.js';

// Pixels of Grafana's grid: a cell's height, and the space between two cells and at the page's edge.
const [CELL, GAP, EDGE] = [30, 8, 16];
const COLUMNS = 24;
const TIME_ZONE = 'utc';

const STYLE = `
  body { margin: 0; }
  #dashboard { position: relative; font-size: 14px; }
  #dashboard > * { position: absolute; }
  #dashboard .row { font-size: 16px; font-weight: 500; line-height: ${CELL}px; margin: 0; }
  #dashboard .no-data { display: flex; height: 100%; align-items: center; justify-content: center; }
  #dashboard header { display: flex; gap: 24px; align-items: baseline; left: ${EDGE}px; right: ${EDGE}px; top: 8px; }
  #dashboard header h1 { font-size: 18px; margin: 0; }
  #dashboard header .time { margin-left: auto; }
  #dashboard header b { font-weight: 500; }
`;
const HEADER = 44;

const parameters = new URLSearchParams(location.search);

async function main() {
  const theme = createTheme({ colors: { mode: 'dark' } });
  document.body.style.background = theme.colors.background.canvas;
  await initPluginTranslations('dashboard-page');
  // Canvases do not wait for fonts by themselves.
  const [regular, medium] = ['Regular', 'Medium'].map((name) => `url(public/fonts/inter/Inter-${name}.woff2)`);
  for (const [source, weight] of [[regular, '400'], [medium, '500']]) {
    document.fonts.add(await new FontFace('Inter', source, { weight }).load());
  }
  const dashboard = await (await fetch('dashboard.json')).json();
  const [from, to] = ['from', 'to'].map((name) => dateTime(Number(parameters.get(name))));
  const range = { from, to, raw: { from, to } };
  const prometheus = new Prometheus(parameters.get('prometheus'), parameters.get('scrape'));
  const offered = dashboard.templating.list.filter(({ type }) => type === 'query');
  const variables = Object.fromEntries(offered.map(({ name, allValue }) => [name, allValue]));
  const cell = (innerWidth - 2 * EDGE + GAP) / COLUMNS;
  const placed = dashboard.panels.map(async (panel) => {
    const { x, y, w, h } = panel.gridPos;
    const box = {
      left: EDGE + x * cell,
      top: HEADER + y * (CELL + GAP),
      width: w * cell - GAP,
      height: h * (CELL + GAP) - GAP,
    };
    const frames = panel.type === 'row' ? [] : await prometheus.frames(panel, range, box.width, variables);
    return { panel, box, frames };
  });
  const cells = await Promise.all(placed);
  const root = document.getElementById('dashboard');
  root.style.height = `${Math.max(...cells.map(({ box }) => box.top + box.height)) + EDGE}px`;
  createRoot(root).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <style>{STYLE}</style>
      <Header title={dashboard.title} labels={offered.map(({ label }) => label)} range={range} />
      {cells.map((each) => (
        <Cell key={each.panel.id} {...each} range={range} />
      ))}
    </ThemeContext.Provider>
  );
  window.report = () => report(cells);
}

function Header({ title, labels, range }) {
  return (
    <header>
      <h1>{title}</h1>
      {labels.map((label) => (
        <span key={label}>
          {label} <b>All</b>
        </span>
      ))}
      <span className="time">
        {range.from.utc().format('YYYY-MM-DD HH:mm:ss')} to {range.to.utc().format('HH:mm:ss')} UTC
      </span>
    </header>
  );
}

function Cell({ panel, box, frames, range }) {
  if (panel.type === 'row') {
    return (
      <h2 className="row" style={box}>
        {panel.title}
      </h2>
    );
  }
  return (
    <section id={`panel-${panel.id}`} style={box}>
      <Panel panel={panel} frames={frames} range={range} timeZone={TIME_ZONE} width={box.width} height={box.height} />
    </section>
  );
}

main();

// Opens the page in Chromium: node look.mjs ADDRESS PICTURE prints {errors, panels} as JSON and writes a screenshot.
import { chromium } from 'playwright-core';

const [address, picture] = process.argv.slice(2);
const SECONDS = 60;

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM });
try {
  const page = await browser.newPage({ viewport: { width: 1600, height: 1000 } });
  const errors = [];
  page.on('pageerror', (error) => errors.push(`exception: ${error.message}`));
  page.on('console', (message) => message.type() === 'error' && errors.push(`console: ${message.text()}`));
  page.on('requestfailed', (request) => errors.push(`${request.url()}: ${request.failure().errorText}`));
  page.on('response', (response) => response.status() >= 400 && errors.push(`${response.url()}: ${response.status()}`));
  await page.goto(address);
  const panels = await steady(page, errors);
  await page.screenshot({ path: picture, fullPage: true });
  process.stdout.write(JSON.stringify({ errors, panels }));
} finally {
  await browser.close();
}

// Returns the report when two in a row are the same, since a legend that is measured moves the lines. Null: it failed.
async function steady(page, errors) {
  let last = null;
  for (const end = Date.now() + SECONDS * 1000; Date.now() < end && !errors.length; ) {
    const next = await page.evaluate(() => JSON.stringify(window.report?.() ?? null));
    if (next !== 'null' && next === last) {
      return JSON.parse(next);
    }
    last = next;
    await page.waitForTimeout(300);
  }
  errors.push(`the page is not steady: ${last}`);
  return null;
}

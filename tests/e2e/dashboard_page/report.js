// Reports what each panel shows: read from the page's elements, from the plots, and from the pixels of their canvases.
import { plots } from './panel.jsx';

// The nearest pixels to a point on a line that is one pixel wide.
const AROUND = 2;
// Smoothed edges of a line differ from its colour.
const SAME_COLOUR = 60;

// Returns null until every panel has drawn something.
export function report(cells) {
  const panels = cells.map(({ panel }) => panel).filter(({ type }) => type !== 'row');
  if (!panels.every(({ id }) => plots.get(id)?.plot || element(id)?.querySelector('.no-data'))) {
    return null;
  }
  return Object.fromEntries(panels.map((panel) => [panel.title, ofPanel(panel)]));
}

function element(id) {
  return document.getElementById(`panel-${id}`);
}

function ofPanel(panel) {
  const section = element(panel.id);
  const shown = { empty: section.querySelector('.no-data')?.textContent ?? null, cut: cutOff(section) };
  const { plot, builder, names } = plots.get(panel.id) ?? {};
  if (!plot) {
    return { ...shown, legend: [], lines: {}, unpainted: {}, ticks: [] };
  }
  const legend = [...section.querySelectorAll('[data-testid*="VizLegend series"]')].map((each) => each.textContent);
  const series = builder.getSeries().map(({ props }, index) => ({
    name: names[index],
    colour: rgb(props.lineColor),
    scale: props.scaleKey,
    points: plot.data[0]
      .map((time, at) => [time / 1000, plot.data[index + 1][at]])
      .filter(([, value]) => Number.isFinite(value)),
  }));
  return {
    ...shown,
    legend,
    lines: Object.fromEntries(series.map(({ name, points }) => [name, points])),
    unpainted: unpainted(plot, series),
    ticks: plot.axes.slice(1).flatMap((axis) => axis._values ?? []).filter((label) => label),
  };
}

// Returns the points of each line whose place on the canvas has the colour of no line. One line may cover another.
function unpainted(plot, series) {
  const { width, height } = plot.ctx.canvas;
  const { data } = plot.ctx.getImageData(0, 0, width, height);
  const found = {};
  for (const { name, scale, points } of series) {
    for (const [time, value] of points) {
      const x = Math.round(plot.valToPos(time * 1000, 'x', true));
      const y = Math.round(plot.valToPos(value, scale, true));
      if (!series.some(({ colour }) => isPainted(data, width, height, x, y, colour))) {
        (found[name] ??= []).push([time, value]);
      }
    }
  }
  return found;
}

function isPainted(data, width, height, x, y, colour) {
  for (let row = Math.max(0, y - AROUND); row <= Math.min(height - 1, y + AROUND); row++) {
    for (let column = Math.max(0, x - AROUND); column <= Math.min(width - 1, x + AROUND); column++) {
      const at = 4 * (row * width + column);
      const distance = colour.reduce((sum, part, index) => sum + Math.abs(part - data[at + index]), 0);
      if (data[at + 3] > 60 && distance < SAME_COLOUR) {
        return true;
      }
    }
  }
  return false;
}

function rgb(colour) {
  const context = new OffscreenCanvas(1, 1).getContext('2d');
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

// Returns the texts of a panel that do not fit: a title that ends in dots, and a legend that has to be scrolled.
function cutOff(section) {
  return [...section.querySelectorAll('*')]
    .filter((each) => {
      const { overflowX, overflowY } = getComputedStyle(each);
      const wide = overflowX !== 'visible' && each.scrollWidth > each.clientWidth + 1;
      const high = overflowY !== 'visible' && each.scrollHeight > each.clientHeight + 1;
      return wide || high;
    })
    .map((each) => each.textContent);
}

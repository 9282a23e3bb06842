// Reads Prometheus' HTTP API as Grafana's data source does, and returns the data frames of Grafana.
import { FieldType, rangeUtil, renderLegendFormat } from '@grafana/data';

export class Prometheus {
  // `scrapeInterval`, such as "15s", is the setting of a data source in Grafana: the smallest step.
  constructor(address, scrapeInterval) {
    this.address = address;
    this.scrapeInterval = scrapeInterval;
  }

  async get(path, parameters) {
    const answer = await fetch(`${this.address}/api/v1/${path}?${new URLSearchParams(parameters)}`);
    const { status, data, error } = await answer.json();
    if (status !== 'success') {
      throw new Error(`${path} ${JSON.stringify(parameters)}: ${error}`);
    }
    return data;
  }

  // Returns the frames of a panel that is `width` pixels wide, a frame for each line.
  async frames(panel, range, width, variables) {
    const step = rangeUtil.calculateInterval(range, width, this.scrapeInterval).intervalMs / 1000;
    const [start, end] = [range.from, range.to].map((time) => Math.floor(time.valueOf() / 1000 / step) * step);
    const answers = panel.targets.map(async ({ expr, legendFormat, refId }) => {
      const query = replaced(expr, variables);
      const { result } = await this.get('query_range', { query, start, end, step });
      return result.map((series) => frame(series, refId, legendFormat, step));
    });
    return (await Promise.all(answers)).flat();
  }
}

// Grafana's variables have the form $name here; the dashboard uses no other.
function replaced(text, variables) {
  return text.replace(/\$(\w+)/g, (_, name) => variables[name]);
}

function frame({ metric, values }, refId, legendFormat, step) {
  return {
    refId,
    length: values.length,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        // A line ends where a step has no value.
        config: { interval: step * 1000 },
        values: values.map(([seconds]) => seconds * 1000),
      },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        config: { displayNameFromDS: renderLegendFormat(legendFormat, metric) },
        values: values.map(([, value]) => finite(value)),
      },
    ],
  };
}

// Grafana's panel takes NaN and infinities for missing. Its plot finds no scale where a line begins with NaN.
function finite(value) {
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}

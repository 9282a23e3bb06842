// Draws one panel with the components of @grafana/ui.
import { applyFieldOverrides, FieldConfigOptionsRegistry, getFieldDisplayName } from '@grafana/data';
import { PanelChrome, TimeSeries, useTheme2 } from '@grafana/ui';
import { useMemo } from 'react';

// What a time series panel of Grafana takes for the options that a dashboard leaves out.
const LEGEND = { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] };
const COLOR = { mode: 'palette-classic' };
const CUSTOM = {
  drawStyle: 'line',
  lineInterpolation: 'linear',
  lineWidth: 1,
  fillOpacity: 0,
  gradientMode: 'none',
  showPoints: 'auto',
  pointSize: 5,
  spanNulls: false,
  axisPlacement: 'auto',
  axisColorMode: 'text',
  scaleDistribution: { type: 'linear' },
  stacking: { mode: 'none', group: 'A' },
  thresholdsStyle: { mode: 'off' },
  hideFrom: { legend: false, tooltip: false, viz: false },
};
const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings'];

/** Plots by the id of their panel, for the report. */
export const plots = new Map();

export function Panel({ panel, frames, range, timeZone, width, height }) {
  if (panel.type !== 'timeseries') {
    throw new Error(`${panel.title}: this page draws no panel of type ${panel.type}`);
  }
  const theme = useTheme2();
  const data = useMemo(() => configured(frames, panel.fieldConfig, theme, timeZone), [frames]);
  const legend = useMemo(() => ({ ...LEGEND, ...panel.options.legend }), [panel]);
  const keep = (builder) => {
    if (plots.get(panel.id)?.builder !== builder) {
      const names = data.map((frame) => getFieldDisplayName(frame.fields[1], frame, data));
      const kept = { builder, names };
      plots.set(panel.id, kept);
      builder.addHook('init', (plot) => (kept.plot = plot));
    }
    return null;
  };
  return (
    <PanelChrome title={panel.title} width={width} height={height}>
      {(innerWidth, innerHeight) =>
        data.length ? (
          <TimeSeries
            frames={data}
            timeRange={range}
            timeZone={timeZone}
            legend={legend}
            width={innerWidth}
            height={innerHeight}
          >
            {keep}
          </TimeSeries>
        ) : (
          <div className="no-data">No data</div>
        )
      }
    </PanelChrome>
  );
}

function configured(frames, { defaults, overrides }, theme, timeZone) {
  const custom = { ...CUSTOM, ...defaults.custom };
  const overridden = overrides.flatMap(({ properties }) => properties.map(({ id }) => id));
  const ids = new Set([...STANDARD, ...Object.keys(custom).map((key) => `custom.${key}`), ...overridden]);
  return applyFieldOverrides({
    data: frames,
    fieldConfig: { defaults: { color: COLOR, ...defaults, custom }, overrides },
    fieldConfigRegistry: new FieldConfigOptionsRegistry(() => [...ids].map(option)),
    replaceVariables: (text) => text,
    theme,
    timeZone,
  });
}

function option(id) {
  const isCustom = id.startsWith('custom.');
  return {
    id,
    name: id,
    path: isCustom ? id.slice('custom.'.length) : id,
    isCustom,
    process: (value) => value,
    shouldApply: () => true,
  };
}

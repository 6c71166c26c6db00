/* Vega-Lite charts without eval: expressions are interpreted, so a strict Content-Security-Policy holds.

   toposcope.chart(place, spec, rows)  ->  promise of the Vega view; colours of axes and text come from the stylesheet. */
toposcope.chart = async (place, spec, rows) => {
  const quiet = { labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, domain: false, ticks: false, labelPadding: 6, gridOpacity: 1 };
  const whole = {
    width: "container", height: 220, background: "transparent", autosize: { type: "fit-x", contains: "padding", resize: true },
    ...spec,
    data: { values: rows },
    config: {
      font: getComputedStyle(document.body).fontFamily, view: { stroke: null }, axis: quiet, axisX: { ...quiet, domain: true, ticks: true, tickSize: 4, grid: false },
      legend: { labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, orient: "bottom", columns: 4, labelLimit: 220, symbolStrokeWidth: 2 },
      range: { category: toposcope.palette }, line: { strokeWidth: 1.8 }, point: { filled: true, size: 26 }, bar: { color: toposcope.palette[0] },
      numberFormat: ".3~g", ...(spec.config || {}),
    },
  };
  const made = await vegaEmbed(place, whole, {
    actions: false, ast: true, renderer: "svg", defaultStyle: false, mode: "vega-lite",
    tooltip: { disableDefaultStyle: true, theme: "custom" },
    loader: vega.loader({ http: { credentials: "omit" } }),
  });
  place.setAttribute("role", "img"); // one picture with one sentence; its numbers are in the data beside it
  place.setAttribute("aria-label", place.dataset.label || "chart");
  place.querySelector("svg")?.setAttribute("aria-hidden", "true");
  return made.view;
};

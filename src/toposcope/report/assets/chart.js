/* Vega-Lite charts without eval: expressions are interpreted, so a strict Content-Security-Policy holds. Which colour is
   which is told in a list under the chart: names may be long, and there they can be whole.

   toposcope.chart(place, spec, rows)  ->  promise of the Vega view; colours of axes and text come from the stylesheet. */
{
  const keyed = (part) => part.encoding?.color?.field && part.encoding.color.type === "nominal";
  /** Every channel of a chart that gives categories their colours. */
  const colours = (part) => [...(keyed(part) ? [part.encoding.color] : []), ...(part.layer || []).flatMap(colours)];
  /** The same chart without the legend of these. */
  const unkeyed = (part) => ({
    ...part,
    ...(keyed(part) ? { encoding: { ...part.encoding, color: { ...part.encoding.color, legend: null } } } : {}),
    ...(part.layer ? { layer: part.layer.map(unkeyed) } : {}),
  });

  toposcope.chart = async (place, spec, rows) => {
    const quiet = { labelOverlap: "greedy", labelSeparation: 5, labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, domain: false, ticks: false, labelPadding: 6, gridOpacity: 1 };
    const whole = {
      width: "container", height: 220, background: "transparent", autosize: { type: "fit-x", contains: "padding", resize: true },
      ...unkeyed(spec),
      data: { values: rows },
      config: {
        font: getComputedStyle(document.body).fontFamily, view: { stroke: null }, axis: quiet, axisX: { ...quiet, domain: true, ticks: true, tickSize: 4, grid: false },
        legend: { labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, orient: "bottom", columns: 4, labelLimit: 220, symbolStrokeWidth: 2 },
        range: { category: toposcope.palette }, line: { strokeWidth: 1.8 }, point: { filled: true, size: 26 }, bar: { color: toposcope.palette[0] },
        numberFormat: ".5~g", ...(spec.config || {}),
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
    const named = colours(spec)[0];
    if (named) {
      const paint = made.view.scale("color");
      place.after(toposcope.element("div", { class: "legend" }, `${named.title ?? named.field}:`, toposcope.element("ul", {}, ...paint.domain().map((name) => {
        const dot = toposcope.element("span", { class: "dot" });
        dot.style.background = paint(name);
        return toposcope.element("li", {}, dot, String(name));
      }))));
    }
    return made.view;
  };
}

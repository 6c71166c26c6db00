/* Vega-Lite charts without eval: expressions are interpreted, so a strict Content-Security-Policy holds. Which colour is
   which is told in a list under the chart, with its dash or its shape: names may be long, and there they can be whole.
   A chart is one stop of the Tab key: arrow keys go from point to point and say what a pointer would be told.

   toposcope.chart(place, spec, rows)  ->  promise of the Vega view; colours of axes and text come from the stylesheet. */
{
  const keyed = (part) => part.encoding?.color?.field && part.encoding.color.type === "nominal";
  /** The channels of every layer that gives categories their colours. */
  const channels = (part) => [...(keyed(part) ? [part.encoding] : []), ...(part.layer || []).flatMap(channels)];
  /** The same chart without the legend of these. */
  const unkeyed = (part) => ({
    ...part,
    ...(keyed(part) ? { encoding: { ...part.encoding, ...Object.fromEntries(["color", "strokeDash", "shape"].filter((name) => part.encoding[name]?.field).map((name) => [name, { ...part.encoding[name], legend: null }])) } } : {}),
    ...(part.layer ? { layer: part.layer.map(unkeyed) } : {}),
  });

  const GLYPHS = { circle: "●", square: "■", "triangle-up": "▲", diamond: "◆", cross: "✚", "triangle-down": "▼" };
  const drawn = (name, attributes) => { const made = document.createElementNS("http://www.w3.org/2000/svg", name); for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value); return made; };
  /** What stands before a name in the list: a stretch of its curve, the shape of its points, or its colour. */
  function key(colour, dash, shape) {
    if (shape) { const made = toposcope.element("span", { class: "glyph", "aria-hidden": "true" }, GLYPHS[shape]); made.style.color = colour; return made; }
    if (dash) { const made = drawn("svg", { class: "stroke", viewBox: "0 0 34 10", "aria-hidden": "true" }); made.append(drawn("line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash })); return made; }
    const made = toposcope.element("span", { class: "dot" });
    made.style.background = colour;
    return made;
  }

  /** What the points of a chart tell, one list for each of its marks, from left to right; what is told twice is told once. */
  function told(view) {
    const known = new Set();
    const words = (tooltip) => (typeof tooltip === "object" ? Object.entries(tooltip).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ") : String(tooltip));
    const inside = (mark, x, y) => {
      if (mark.marktype === "group") return mark.items.flatMap((group) => group.items.flatMap((each) => inside(each, x + (group.x || 0), y + (group.y || 0))));
      const points = mark.items.filter((item) => item.tooltip).map((item) => ({ words: words(item.tooltip), x: x + item.x + (item.width || 0) / 2, y: y + item.y + (mark.marktype === "rect" && item.height > 40 ? 0 : (item.height || 0) / 2) }));
      const fresh = points.filter((point) => !known.has(point.words) && known.add(point.words));
      return fresh.length ? [fresh.sort((a, b) => a.x - b.x || a.y - b.y)] : [];
    };
    return inside(view.scenegraph().root, 0, 0);
  }
  function walk(place, view) {
    const reading = toposcope.element("p", { class: "reading small", "aria-live": "polite", hidden: true });
    const ring = drawn("circle", { class: "here", r: 7 });
    let lists = [];
    const show = (point) => {
      reading.hidden = false;
      reading.textContent = point.words;
      ring.setAttribute("cx", point.x);
      ring.setAttribute("cy", point.y);
      place.querySelector("svg > g").append(ring);
    };
    const here = toposcope.byKeys(place, () => lists, show);
    place.after(reading);
    place.setAttribute("tabindex", "0");
    place.addEventListener("focus", () => { lists = told(view); if (lists.length && place.matches(":focus-visible")) show(here()); });
    place.addEventListener("blur", () => { reading.hidden = true; ring.remove(); });
  }

  toposcope.chart = async (place, spec, rows) => {
    const quiet = { labelOverlap: "parity", labelSeparation: 5, labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, domain: false, ticks: false, labelPadding: 6, gridOpacity: 1 };
    const whole = {
      width: "container", height: 220, background: "transparent", autosize: { type: "fit-x", contains: "padding", resize: true },
      ...unkeyed(spec),
      data: { values: rows },
      config: {
        font: getComputedStyle(document.body).fontFamily, view: { stroke: null }, axis: quiet, axisX: { ...quiet, domain: true, ticks: true, tickSize: 4, grid: false }, axisXQuantitative: { tickCount: { expr: "clamp(width / 45, 3, 16)" } },
        legend: { labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500, orient: "bottom", columns: 4, labelLimit: 220, symbolStrokeWidth: 2 },
        range: { category: toposcope.palette }, line: { strokeWidth: 1.8, color: toposcope.palette[0] }, point: { filled: true, size: 26 }, bar: { color: toposcope.palette[0] },
        numberFormat: ".5~g", ...(spec.config || {}),
      },
    };
    const made = await vegaEmbed(place, whole, {
      actions: false, ast: true, renderer: "svg", defaultStyle: false, mode: "vega-lite",
      tooltip: { disableDefaultStyle: true, theme: "custom" },
      loader: vega.loader({ http: { credentials: "omit" } }),
    });
    place.setAttribute("role", "application"); // one picture with one sentence; its numbers are in the data beside it
    place.setAttribute("aria-roledescription", "chart");
    place.setAttribute("aria-label", `${place.dataset.label || "chart"} Arrow keys go from point to point.`);
    place.querySelector("svg")?.setAttribute("aria-hidden", "true");
    const named = channels(spec)[0]?.color;
    if (named) {
      const scale = (channel) => (channels(spec).some((each) => each[channel]?.field === named.field) ? made.view.scale(channel) : () => null);
      const [paint, dash, shape] = ["color", "strokeDash", "shape"].map(scale);
      place.after(toposcope.element("div", { class: "legend" }, `${named.title ?? named.field}:`, toposcope.element("ul", {},
        ...paint.domain().map((name) => toposcope.element("li", {}, key(paint(name), dash(name), shape(name)), String(name))))));
    }
    walk(place, made.view);
    return made.view;
  };
}

/* Lines and dots on axes, redrawn in a millisecond: for charts that follow a slider.

   toposcope.lines(place, { label, x: { title, log, min, max }, y: { ..., format }, height, equal, name })
     -> { set(series, marks) }
   series: [{ name, points: [[x, y], ...], look: "line" | "dots" | "both" | "dash" | "faint", colour: a variable of the stylesheet }]
   marks: [{ x, y, words }] are thin lines across the chart (x: upright, y: level).
   A chart is one stop of the Tab key: arrow keys go from point to point and say what a pointer would be told. */
toposcope.lines = (place, options) => {
  const { element, show, saveButtons } = toposcope;
  const space = "http://www.w3.org/2000/svg";
  const draw = (name, attributes, ...children) => {
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const picture = draw("svg", { "aria-hidden": "true", class: "lines" });
  const legend = element("ul", { class: "keys" });
  const tip = element("div", { class: "tip small", hidden: true });
  const live = element("div", { class: "visually-hidden", "aria-live": "polite" });
  const named = (words) => frame.setAttribute("aria-label", `${words}. Arrow keys go from point to point.`);
  const frame = element("div", { class: "lines-frame", tabindex: "0", role: "application", "aria-roledescription": "chart" }, picture, tip, live);
  named(options.label);
  let series = [];
  let marks = [];
  let map = null;
  place.append(frame, legend, saveButtons(options.name || options.label, () =>
    series.flatMap((each) => each.points.map(([x, y]) => ({ series: each.name, [options.x.key || "x"]: x, [options.y.key || "y"]: y })))));

  function extent(axis, at) {
    const values = series.flatMap((each) => each.points.map((point) => point[at])).filter((v) => Number.isFinite(v) && (!axis.log || v > 0));
    for (const mark of marks) { const value = at ? mark.y : mark.x; if (Number.isFinite(value) && (!axis.log || value > 0)) values.push(value); }
    let low = axis.min ?? values.reduce((a, b) => Math.min(a, b), Infinity);
    let high = axis.max ?? values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!(low <= high)) { low = axis.log ? 1 : 0; high = axis.log ? 10 : 1; }
    if (axis.log) { if (high / low < 1.5) { low /= 1.3; high *= 1.3; } return [low, high]; }
    const pad = high > low ? 0.05 * (high - low) : Math.abs(high) * 0.1 || 1;
    return [axis.min ?? low - pad, axis.max ?? high + pad];
  }
  function ticks(low, high, log, room) {
    if (log) {
      const first = Math.ceil(Math.log10(low) - 1e-9);
      const last = Math.floor(Math.log10(high) + 1e-9);
      if (last - first >= 1) {
        const every = Math.max(1, Math.ceil((last - first + 1) / room));
        const found = [];
        for (let k = first; k <= last; k += every) found.push(10 ** k);
        return found;
      }
      low = Math.max(low, 1e-300);
    }
    const rough = (high - low) / Math.max(2, room);
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    const found = [];
    for (let v = Math.ceil(low / unit - 1e-9) * unit; v <= high + unit * 1e-9; v += unit) found.push(Math.abs(v) < unit * 1e-9 ? 0 : Number(v.toPrecision(12)));
    return found;
  }
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + "M";
    if (size >= 1e4) return Number((value / 1e3).toPrecision(3)) + "k";
    if (size !== 0 && size < 1e-3) return String(Number(value.toPrecision(2)).toExponential());
    return String(Number(value.toPrecision(4)));
  };

  function redraw() {
    const width = Math.max(220, frame.clientWidth);
    const left = options.y.title ? 62 : 52, right = 12, top = 10, bottom = 40;
    const [x0, x1] = extent(options.x, 0);
    const [y0, y1] = extent(options.y, 1);
    let height = options.height || 240;
    if (options.equal) height = Math.min(280, Math.max(180, (width - left - right) * (y1 - y0) / (x1 - x0) + top + bottom));
    const scale = (low, high, log, a, b) => log ? (v) => a + (b - a) * Math.log(v / low) / Math.log(high / low) : (v) => a + (b - a) * (v - low) / (high - low);
    const x = scale(x0, x1, options.x.log, left, width - right);
    const y = scale(y0, y1, options.y.log, height - bottom, top);
    map = { x, y, width, height, left, right, top, bottom };
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    const parts = [];
    for (const value of ticks(y0, y1, options.y.log, (height - top - bottom) / 40)) {
      parts.push(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      parts.push(draw("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, (options.y.format || short)(value)));
    }
    for (const value of ticks(x0, x1, options.x.log, (width - left - right) / 64)) {
      parts.push(draw("line", { class: "axis", x1: x(value), x2: x(value), y1: height - bottom, y2: height - bottom + 4 }));
      parts.push(draw("text", { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }, short(value)));
    }
    parts.push(draw("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    parts.push(draw("text", { class: "title", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, options.x.title));
    const middle = (top + height - bottom) / 2;
    if (options.y.title) parts.push(draw("text", { class: "title", x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, options.y.title));
    for (const mark of marks) {
      const level = mark.x === undefined;
      const at = level ? y(mark.y) : x(mark.x);
      if (!Number.isFinite(at)) continue;
      parts.push(draw("line", level ? { class: "mark-line", x1: left, x2: width - right, y1: at, y2: at } : { class: "mark-line", x1: at, x2: at, y1: top, y2: height - bottom }));
    }
    const clip = "clip-" + (options.name || options.label).replace(/\W+/g, "-");
    parts.push(draw("clipPath", { id: clip }, draw("rect", { x: left - 5, y: top - 5, width: width - left - right + 10, height: height - top - bottom + 10 })));
    const inside = draw("g", { "clip-path": `url(#${clip})` });
    parts.push(inside);
    for (const each of series) {
      const seen = each.points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!options.x.log || a > 0) && (!options.y.log || b > 0));
      const ink = `var(--${each.colour || "high-2"})`;
      if (each.look !== "dots" && seen.length) {
        const line = draw("polyline", { class: "line " + (each.look || "line"), points: seen.map(([a, b]) => x(a).toFixed(1) + "," + y(b).toFixed(1)).join(" ") });
        line.style.stroke = ink;
        inside.append(line);
      }
      if (["dots", "both"].includes(each.look) || seen.length === 1) {
        for (const [a, b] of seen) { const dot = draw("circle", { class: "dot-mark", cx: x(a), cy: y(b), r: each.radius || 3.2 }); dot.style.fill = ink; inside.append(dot); }
      }
    }
    picture.replaceChildren(...parts);
    legend.replaceChildren(...(series.length > 1 ? series.map((each) => {
      const key = element("span", { class: "key " + (each.look || "line"), "aria-hidden": "true" });
      key.style.setProperty("--ink-of-key", `var(--${each.colour || "high-2"})`);
      return element("li", {}, key, each.name);
    }) : []));
  }
  function point(event) {
    if (!map || !series.length) return;
    const box = picture.getBoundingClientRect();
    const at = [(event.clientX - box.left) * map.width / box.width, (event.clientY - box.top) * map.height / box.height];
    let best = null;
    for (const each of seen().flat()) {
      const far = Math.hypot(each.x - at[0], (each.y - at[1]) * 0.35);
      if (!best || far < best.far) best = { ...each, far };
    }
    tip.hidden = !best || best.far > 60;
    if (!tip.hidden) tell(best, box);
  }
  /** Every point that is drawn, with its place: a list for each series. */
  const seen = () => series.map((each) => each.points.map(([a, b]) => ({ a, b, x: map.x(a), y: map.y(b), name: each.name })).filter(({ x, y }) => Number.isFinite(x) && Number.isFinite(y))).filter((list) => list.length);
  function tell(best, box) {
    tip.textContent = `${series.length > 1 ? best.name + ": " : ""}${show(best.b)} at ${options.x.short || options.x.title} ${show(best.a)}`;
    const scale = box.width / map.width;
    tip.style.left = Math.min(Math.max(best.x * scale, 70), box.width - 70) + "px";
    tip.style.top = best.y * scale + "px";
  }
  toposcope.byKeys(frame, () => (map ? seen() : []), (found) => { tip.hidden = false; tell(found, picture.getBoundingClientRect()); live.textContent = tip.textContent; });
  frame.addEventListener("blur", () => { tip.hidden = true; });
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => { tip.hidden = true; });
  new ResizeObserver(redraw).observe(frame);
  return {
    set(next, lines = []) { series = next; marks = lines; redraw(); },
    say(words) { named(words); },
  };
};

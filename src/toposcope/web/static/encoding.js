/* The encoding explorer. */
"use strict";
(() => {
  const { element, slider, choice, show, query } = toposcope;
  const kinds = toposcope.given("kinds");
  const remembered = new URLSearchParams(location.search);
  const controls = document.getElementById("controls");
  const place = document.getElementById("parameters");
  const byName = Object.fromEntries(kinds.map((kind) => [kind.name, kind]));
  const mechanisms = { none: "none", input: "added to the input", rotary: "rotations", bias: "added to the logits" };
  const READS = { default: [], linear: ["factor"], ntk: ["factor"], dynamic: ["factor", "original_context"], yarn: ["factor", "original_context"], llama3: ["factor", "original_context"] };

  const chosen = element("select", { id: "encoding", name: "encoding" });
  for (const [mechanism, words] of Object.entries(mechanisms)) {
    const mine = kinds.filter((kind) => kind.mechanism === mechanism);
    chosen.append(element("optgroup", { label: words }, ...mine.map((kind) => element("option", { value: kind.name }, kind.name))));
  }
  const asked = remembered.get("encoding") || "rope";
  const [name, parameters = ""] = asked.split(/:(.*)/s);
  chosen.value = name in byName ? name : "rope";
  const wanted = Object.fromEntries(parameters.split(",").filter(Boolean).map((part) => part.split("=")));
  const about = element("p", { class: "small soft", id: "about" });
  const number = (key, fallback, low, high) => { const value = Number(remembered.get(key)); return remembered.has(key) && value >= low && value <= high ? value : fallback; };
  const context = slider({ id: "context", label: "Context n", min: 4, max: 20, step: 0.125, value: number("context", 4096, 16, 2 ** 20), scale: "log2", change });
  const width = slider({ id: "head_dim", label: "Head width h", min: 8, max: 256, step: 8, value: number("head_dim", 64, 8, 256), change });
  const heads = slider({ id: "heads", label: "Heads in the layer", min: 1, max: 32, step: 1, value: number("heads", 8, 1, 32), change: () => { fit(); change(); } });
  const head = slider({ id: "head", label: "Which head", min: 0, max: 31, step: 1, value: number("head", 0, 0, 31), change });
  controls.prepend(element("label", { class: "field", for: "encoding" }, "Encoding", chosen), about, context.field);
  let own = {};

  /** The controls that belong to the chosen encoding. */
  function arrange() {
    const kind = byName[chosen.value];
    about.textContent = kind.about.charAt(0).toUpperCase() + kind.about.slice(1) + ".";
    const known = new Set(kind.parameters.map((each) => each.name));
    const fallback = (key, value) => wanted[key] !== undefined ? Number(wanted[key]) : value;
    own = {};
    if (known.has("base")) own.base = slider({ id: "base", label: "Base", min: 1, max: 8, step: 0.01, value: fallback("base", 10000), scale: "log10", change });
    if (known.has("scaling")) {
      own.scaling = choice({ id: "scaling", label: "Scaling", options: Object.keys(READS), value: wanted.scaling || "default", change: () => { scaled(); change(); } });
      own.factor = slider({ id: "factor", label: "Scaling factor", min: 0, max: 6, step: 1, value: fallback("factor", 8), scale: "log2", change });
      own.original_context = slider({ id: "original_context", label: "Context before scaling", min: 8, max: 17, step: 1, value: fallback("original_context", 4096), scale: "log2", change });
    }
    if (chosen.value === "rope-partial") own.partial = slider({ id: "partial", label: "Fraction of channels rotated", min: 0.1, max: 1, step: 0.05, value: fallback("partial", 0.5), change });
    if (known.has("scale_base")) own.scale_base = slider({ id: "scale_base", label: "Decay length (tokens)", min: 4, max: 14, step: 0.25, value: fallback("scale_base", 512), scale: "log2", change });
    if (known.has("max_bias")) own.max_bias = slider({ id: "max_bias", label: "Flattest slope 2^-k, k", min: 1, max: 16, step: 0.5, value: fallback("max_bias", 8), change });
    if (known.has("kernel")) own.kernel = choice({ id: "kernel", label: "Kernel", options: [["log", "logarithm"], ["power", "power"]], value: wanted.kernel || "log", change });
    if (known.has("r1")) own.r1 = slider({ id: "r1", label: "Strength r1", min: 0.05, max: 4, step: 0.05, value: fallback("r1", 1), change });
    if (known.has("r2")) own.r2 = slider({ id: "r2", label: "Shape r2", min: 0.05, max: 2, step: 0.05, value: fallback("r2", 1), change });
    if (known.has("buckets")) own.buckets = slider({ id: "buckets", label: "Buckets", min: 2, max: 8, step: 1, value: fallback("buckets", 32), scale: "log2", change });
    if (known.has("max_distance")) own.max_distance = slider({ id: "max_distance", label: "Largest bucketed distance", min: 5, max: 12, step: 1, value: fallback("max_distance", 128), scale: "log2", change });
    if (known.has("c")) own.c = slider({ id: "c", label: "c of ln(c x + 1)", min: 0.02, max: 2, step: 0.02, value: fallback("c", 0.1), change });
    if (known.has("threshold")) own.threshold = slider({ id: "threshold", label: "Threshold L", min: 4, max: 12, step: 1, value: fallback("threshold", 512), scale: "log2", change });
    if (known.has("seed")) own.seed = slider({ id: "seed", label: "Seed before training", min: 0, max: 20, step: 1, value: fallback("seed", 0), change });
    const sizes = kind.mechanism === "bias" ? [heads.field, head.field] : kind.mechanism === "input" ? [width.field, heads.field] : kind.mechanism === "rotary" ? [width.field] : [];
    place.replaceChildren(...sizes, ...Object.values(own).map((each) => each.field));
    scaled();
    fit();
  }
  function scaled() {
    if (!own.scaling) return;
    const read = READS[own.scaling.value];
    for (const key of ["factor", "original_context"]) own[key].field.hidden = !read.includes(key);
  }
  function fit() {
    head.input.max = heads.value - 1;
    head.value = Math.min(head.value, heads.value - 1);
  }
  function spec() {
    const read = own.scaling ? READS[own.scaling.value] : [];
    const parts = [];
    for (const [key, control] of Object.entries(own)) {
      if (["factor", "original_context"].includes(key) && !read.includes(key)) continue;
      if (key === "scaling" && control.value === "default") continue;
      parts.push(`${key}=${control.value}`);
    }
    return chosen.value + (parts.length ? ":" + parts.join(",") : "");
  }
  function values(settled) {
    const kind = byName[chosen.value].mechanism;
    // vectors added to the input have the model's width; wide ones are too slow to follow a hand
    const most = Math.max(1, Math.floor(256 / width.value));
    return { encoding: spec(), context: context.value, head_dim: width.value, heads: kind === "input" ? Math.min(heads.value, most) : heads.value, head: kind === "bias" ? head.value : 0, settled: settled ? 1 : "" };
  }

  // ---------------------------------------------------------------- pictures
  const kernel = toposcope.lines(document.getElementById("kernel"), { name: "kernel", label: "kernel over offsets", x: { title: "offset t = i - j (logarithmic)", short: "offset", log: true, key: "offset" }, y: { title: "g(t)", key: "g" } });
  const spectrum = toposcope.lines(document.getElementById("spectrum"), { name: "spectrum", label: "eigenvalues", x: { title: "number of the eigenvalue, largest first", short: "number", log: true, key: "number" }, y: { title: "size over n", log: true, key: "eigenvalue over n" } });
  const norm = toposcope.lines(document.getElementById("norm"), { name: "norm by context", label: "norm over context", x: { title: "context n", short: "n =", log: true, min: 8, max: 2 ** 20, key: "context" }, y: { title: "largest eigenvalue over n", min: 0, max: 1.02, key: "largest eigenvalue over n" } });
  const fact = (id, words) => { document.getElementById(id).textContent = words; };
  let latest = null;
  let kept = null;
  const STATEMENTS = { theorem: "exact, from a closed form", measured: "measured", bound: "a bound" };

  function draw(found) {
    latest = found;
    const point = found.point;
    fact("rho", point ? (point.statement === "bound" ? "≥ " : "") + show4(point.lambda_max_over_n) : "–");
    for (const name of ["law", "gap"]) document.getElementById(name).parentElement.hidden = point?.law == null; // plain RoPE alone has one
    fact("law", point?.law != null ? show4(point.law) : "–");
    fact("gap", point?.law != null ? signed(point.law - point.lambda_max_over_n) : "–");
    fact("rank", point?.effective_rank != null ? mark(point) + compact(point.effective_rank) : "–");
    fact("condition", point?.condition != null ? (point.condition_statement === "at least" ? "≥ " : "") + point.condition.toPrecision(3) : "–");
    fact("title", found.title);
    fact("sentence", sentence(found));
    fact("words", found.words);
    fact("notes", found.notes.map((note) => note.charAt(0).toUpperCase() + note.slice(1)).join(" "));
    const first = { name: "kernel", look: "line", points: found.kernel ? found.kernel.offsets.map((t, i) => [Math.max(t, 0.5), found.kernel.values[i]]) : [], colour: "high-2" };
    const values = { name: "eigenvalues", look: "dots", radius: 2.4, points: found.spectrum ? found.spectrum.numbers.map((k, i) => [k, found.spectrum.values[i]]) : [], colour: "high-2" };
    const curve = { name: "λmax / n", look: "both", points: found.curve.map((each) => [each.context, each.lambda_max_over_n]), colour: "high-2" };
    const law = { name: "the law", look: "dash", points: found.law_line || [], colour: "low-2" };
    const others = (key, look) => kept ? [{ name: "kept: " + kept.encoding, look: look || "faint", points: kept.series[key], colour: "diverges_above", radius: 1.8 }] : [];
    kernel.set([first, ...others("kernel")], [{ y: 0 }]);
    spectrum.set([values, ...others("spectrum", "dots")]);
    norm.set([curve, ...(law.points.length ? [law] : []), ...others("norm")], [{ x: found.context }]);
    document.getElementById("law-words").hidden = !law.points.length;
    document.getElementById("kernel").hidden = !found.kernel;
    document.getElementById("spectrum").hidden = !found.spectrum;
    document.getElementById("no-kernel").hidden = Boolean(found.kernel);
    document.getElementById("no-spectrum").hidden = Boolean(found.spectrum);
    kernel.say(found.kernel ? `kernel of ${found.title}, from 1 at offset 0 to ${show(found.kernel.values.at(-1))} at offset ${found.kernel.offsets.at(-1)}` : "no kernel over offsets");
    latest.series = { kernel: first.points, spectrum: values.points, norm: curve.points };
    document.body.dataset.settled = found.settled;
  }
  const show4 = (value) => value >= 0.0995 ? value.toFixed(4) : value >= 0.001 ? value.toPrecision(3) : value.toExponential(2);
  const signed = (value) => (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(4);
  const compact = (value) => value >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(4);
  const mark = (point) => ({ "at most": "≤ ", estimate: "~ ", limit: "~ " })[point.effective_rank_statement] || "";
  function sentence(found) {
    const n = found.context.toLocaleString("en");
    if (!found.point) return `At ${n} positions: ${found.why_not}.`;
    const point = found.point;
    const said = STATEMENTS[point.statement];
    const between = point.statement === "bound" ? `; it lies between ${show4(point.lower)} and ${show4(point.upper)}` : "";
    const rotary = ["rotary", "none"].includes(byName[chosen.value].mechanism);
    const what = rotary ? "the shared-content factor is" : "the kernel's largest eigenvalue, over n, is";
    return `At ${n} positions ${what} ${show4(point.lambda_max_over_n)}${rotary ? " (1 would mean that position has no effect)" : ""}: ${said}${between}.`;
  }

  const status = document.getElementById("status");
  const ask = toposcope.follow({
    address: (settled) => query("/api/encoding", values(settled)),
    show: draw,
    failed: (words) => { status.textContent = words; status.hidden = !words; },
    busy: (is) => { document.getElementById("results").setAttribute("aria-busy", is); },
  });
  function change() {
    const { settled, ...shown } = values(false);
    history.replaceState(null, "", query(location.pathname, shown));
    ask();
  }
  chosen.addEventListener("change", () => { for (const key of Object.keys(wanted)) delete wanted[key]; arrange(); change(); });
  document.getElementById("keep").addEventListener("click", () => {
    kept = kept ? null : { encoding: latest.encoding, series: latest.series };
    const button = document.getElementById("keep");
    button.setAttribute("aria-pressed", String(Boolean(kept)));
    button.textContent = kept ? "Forget what is kept" : "Keep to compare";
    draw(latest);
  });
  arrange();
  ask();
})();

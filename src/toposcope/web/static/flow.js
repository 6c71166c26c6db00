/* Token flow: two matrices, a preset or a head of a model. */
"use strict";
(() => {
  const { element, slider, choice, tick, show, span, query } = toposcope;
  const presets = toposcope.given("presets");
  const models = toposcope.given("models");
  const remembered = new URLSearchParams(location.search);
  const word = (key, fallback) => remembered.get(key) ?? fallback;
  const number = (key, fallback) => { const value = Number(remembered.get(key)); return remembered.has(key) && remembered.get(key) !== "" && Number.isFinite(value) ? value : fallback; };
  const place = document.getElementById("source-controls");
  const common = document.getElementById("common-controls");

  // ---------------------------------------------------------------- what flows
  const segments = document.getElementById("source");
  const sources = [["matrices", "Matrices"], ["preset", "Preset"], ...(models.length ? [["head", "Model's head"]] : [])];
  let source = sources.some(([name]) => name === remembered.get("source")) ? remembered.get("source") : "matrices";
  for (const [name, words] of sources) {
    segments.append(element("label", {}, element("input", { type: "radio", name: "source", value: name, checked: name === source,
      onchange: () => { source = name; defaults(); arrange(); unasked(); change(); } }), words));
  }
  const dim = choice({ id: "dim", label: "Dimensions", options: [["2", "2, the plane"], ["3", "3, space"]], value: word("dim", "2"), change: () => { arrange(); change(); } });
  const matrix = (letter, words, first) => {
    const at = (suffix, label, value, range) => slider({ id: letter + suffix, label, ...range, value: number(letter + suffix, value), change });
    const size = { min: -3, max: 3, step: 0.05 }, angle = { min: -180, max: 180, step: 1, format: (x) => x + "°" };
    const parts = { 1: at("1", "λ₁", first, size), 2: at("2", "λ₂", first, size), 3: at("3", "λ₃", first, size), _axes: at("_axes", "axes at", 0, angle), _turn: at("_turn", "turned", 0, angle) };
    return { letter, parts, shown: element("code", { class: "matrix", id: letter + "-shown" }), words };
  };
  const V = matrix("v", "V: what a token hands on", -1);
  const W = matrix("w", "W: who looks at whom", 1);
  const preset = choice({ id: "preset", label: "Preset", options: presets.map((each) => each.name), value: word("preset", "collapse"), change: () => { defaults(); arrange(); unasked(); change(); } });
  const about = element("p", { class: "small soft", id: "preset-about" });
  const model = choice({ id: "model", label: "Model", options: models.map((each) => [each.id, each.name]), value: word("model", models[0]?.id), change: () => { facts(); unasked(); change(); } });
  const layer = slider({ id: "layer", label: "Layer", min: 0, max: 200, step: 1, value: number("layer", 0), change });
  const head = slider({ id: "head", label: "Head", min: 0, max: 128, step: 1, value: number("head", 0), change });
  const norms = choice({ id: "norms", label: "The model's norms", options: [["start", "once, at the start"], ["on", "always"], ["off", "never"]], value: word("norms", "start"), change });

  // ---------------------------------------------------------------- around it
  const ENCODINGS = [["none", "none"], ["rope", "rope: rotation"], ["xpos", "xpos: rotation and decay"], ["alibi", "alibi: penalty on distance"], ["kerple", "kerple: logarithmic penalty"], ["t5", "t5: buckets"], ["sinusoidal", "sinusoidal vectors"]];
  const encoding = choice({ id: "encoding", label: "Encoding", options: [["", "as given"], ...ENCODINGS], value: word("encoding", "none").split(":")[0], change: () => { arrange(); change(); } });
  const turns = slider({ id: "turns", label: "Tokens per turn", min: 1, max: 7, step: 0.05, value: number("turns", 2 * Math.PI), scale: undefined, format: (x) => (2 ** x).toPrecision(3), change });
  turns.value = Math.log2(number("turns", 2 * Math.PI));
  const absolute = choice({ id: "absolute", label: "Position vectors added", options: [["input", "at the input only"], ["reinject", "again in every step"], ["logits", "to the logits only"]], value: word("absolute", "input"), change });
  const causal = choice({ id: "causal", label: "Attention mask", options: [["1", "the past only (causal)"], ["0", "all tokens"], ["", "as given"]], value: word("causal", "1"), change });
  const diagonal = slider({ id: "diagonal", label: "Diagonal τ added to W", min: -4, max: 8, step: 0.1, value: number("diagonal", 0), change });
  const automatic = tick({ id: "automatic", label: "smallest τ that makes W positive definite", value: word("diagonal", "") === "auto", change: () => { arrange(); change(); } });
  const count = slider({ id: "n", label: "Tokens", min: 1, max: 128, step: 1, value: number("n", 24), change: () => { touched.n = true; change(); } });
  const seed = slider({ id: "seed", label: "Random seed", min: 0, max: 50, step: 1, value: number("seed", 0), change });
  const size = slider({ id: "size", label: "Initial token size", min: -2, max: 2, step: 0.05, value: number("size", 1), scale: "log10", change });
  const horizon = slider({ id: "horizon", label: "Integration time", min: 0, max: 2.5, step: 0.05, value: number("horizon", 20), scale: "log10", change: () => { touched.horizon = true; change(); } });
  const touched = { n: remembered.has("n"), horizon: remembered.has("horizon") };

  function defaults() {
    touched.n = touched.horizon = false;
    horizon.value = horizon.value; // a step of the slider again: that is what it sends
    const own = source !== "matrices";
    encoding.value = own ? "" : "none";
    causal.value = own ? "" : "1";
    diagonal.value = 0;
    automatic.value = false;
    count.value = source === "preset" ? presets.find((each) => each.name === preset.value).tokens : source === "head" ? 16 : 24;
    if (source === "head") facts();
  }
  function arrange() {
    const three = dim.value === "3";
    const group = ({ parts, words, shown }) => element("fieldset", { class: "group" }, element("legend", {}, words), parts[1].field, parts[2].field, ...(three ? [parts[3].field] : []), parts._axes.field, parts._turn.field, shown);
    if (source === "matrices") place.replaceChildren(dim.field, group(V), group(W));
    else if (source === "preset") {
      const mine = presets.find((each) => each.name === preset.value);
      about.textContent = mine.sentence;
      place.replaceChildren(preset.field, about, ...Object.entries(mine.changes).map(([how, what]) => element("p", { class: "small soft" }, hints[how] || how, ": ", what, ".")));
    } else place.replaceChildren(model.field, layer.field, head.field, norms.field);
    const rotary = ["rope", "xpos"].includes(encoding.value);
    const given = source !== "matrices";
    encoding.input.options[0].hidden = !given;
    causal.input.options[2].hidden = !given;
    diagonal.field.hidden = automatic.value;
    const fixed = source === "preset" && presets.find((each) => each.name === preset.value).fixed;
    common.replaceChildren(encoding.field, ...(encoding.value === "rope" && source !== "head" && dim.value === "2" ? [turns.field] : []), ...(encoding.value === "sinusoidal" ? [absolute.field] : []),
      causal.field, diagonal.field, automatic.field, ...(fixed ? [] : [count.field]), seed.field, ...(source === "matrices" ? [size.field] : []), horizon.field);
    count.input.max = source === "head" ? 64 : 128;
    return rotary;
  }
  const hints = { "--causal": "Try the past only", "--add-diagonal 1": "Try a diagonal of 1", "--encoding none": "Try the encoding none" };
  async function facts() {
    try {
      const found = await toposcope.ask("/api/models/" + model.value);
      layer.input.max = found.layers - 1;
      head.input.max = found.heads - 1;
      layer.value = Math.min(layer.value, found.layers - 1);
      head.value = Math.min(head.value, found.heads - 1);
    } catch (error) { failed(error.message); }
  }
  function spec() {
    if (encoding.value === "rope" && source !== "head" && dim.value === "2") return `rope:divisors=${(2 ** turns.value / (2 * Math.PI)).toPrecision(6)}`;
    if (encoding.value === "kerple") return "kerple";
    return encoding.value;
  }
  function values(settled) {
    const around = { encoding: spec(), causal: causal.value, diagonal: automatic.value ? "auto" : diagonal.value, seed: seed.value, settled: settled ? 1 : "" };
    if (encoding.value === "sinusoidal") around.absolute = absolute.value;
    if (source !== "preset" || (touched.n && !presets.find((each) => each.name === preset.value).fixed)) around.n = count.value;
    if (source === "matrices" || touched.horizon) around.horizon = horizon.value;
    if (source === "preset") return { source, preset: preset.value, ...around };
    if (source === "head") return { source, model: model.value, layer: layer.value, head: head.value, norms: norms.value, ...around };
    const both = {};
    for (const { letter, parts } of [V, W]) for (const [key, control] of Object.entries(parts)) if (key !== "3" || dim.value === "3") both[letter + key] = control.value;
    return { source, dim: dim.value, size: size.value, ...both, ...around };
  }

  // ---------------------------------------------------------------- pictures and words
  const moving = toposcope.tokens(document.getElementById("moving"));
  const plane = toposcope.lines(document.getElementById("plane"), { name: "eigenvalues of V", label: "eigenvalues of V in the complex plane", equal: true, x: { title: "real part", short: "real part", key: "real" }, y: { title: "imaginary part", key: "imaginary" } });
  const measured = document.getElementById("measured");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let first = true;
  let series = null;
  let drawn = null;
  const text = (id, words) => { document.getElementById(id).textContent = words; };

  function draw(found) {
    moving.set(found);
    if (source !== "matrices" && !touched.horizon) horizon.tell(Number(found.horizon.toPrecision(3)));
    text("status-words", found.meaning.charAt(0).toUpperCase() + found.meaning.slice(1) + ` (t\u00a0=\u00a0${show(found.end)}).`);
    const axes = found.axes === "coordinates" ? "" : ` Shown: the three directions in which the tokens are widest (${Math.round(100 * found.axes_share)}% of their squares).`;
    text("axes", (found.settled ? `${show(found.evaluations)} evaluations of the field.` : "A preview; the whole run follows when the controls rest.") + axes);
    text("flow-notes", found.notes.map((note) => note.charAt(0).toUpperCase() + note.slice(1) + ".").join(" "));
    if (found.V) { for (const { letter, shown } of [V, W]) shown.textContent = letter.toUpperCase() + " = " + rows(found[letter.toUpperCase()]); }
    if (found.verdict) verdict(found.verdict, found);
    else unasked();
    if (found.observables) { series = found; observables(); }
    if (found.settled && first) { first = false; if (!calm) moving.play(); }
    document.body.dataset.settled = found.settled;
  }
  const rows = (values) => "[" + values.map((row) => row.map((v) => Number(v.toFixed(2))).join("  ")).join(" ; ") + "]";

  /** Nothing of the verdict before stays while the next is on its way. */
  const asking = "Asking the theorems …";
  function unasked() {
    text("verdict-word", asking);
    document.getElementById("verdict-dot").className = "dot";
    for (const id of ["verdict-meaning", "verdict-statement", "agreement", "certificate"]) document.getElementById(id).replaceChildren();
  }
  function verdict(given, found) {
    document.getElementById("verdict-dot").className = "dot " + given.verdict;
    text("verdict-word", show(given.verdict) + (given.rule ? `, by ${given.theorem}` : ""));
    text("verdict-meaning", given.meaning.charAt(0).toUpperCase() + given.meaning.slice(1) + ".");
    text("verdict-statement", given.statement.charAt(0).toUpperCase() + given.statement.slice(1) + ".");
    text("agreement", found.observed ? "The run: " + found.observed + "." : "");
    const pairs = [["theorem", given.theorem], ["holds for", given.speaks_of], ["exact", given.exact], ["margin", given.margin === null ? "–" : ["T5", "T6"].includes(given.rule) ? show(given.margin, "percent") + " (relative change of V and O it survives)" : show(given.margin)],
      ["real parts of V", span(given.omega, given.alpha)], ["sym(W)", span(given.w_min, given.w_max)], ["sym(VᵀW)", span(given.a_min, given.a_max)], ["growth index", show(given.growth_index) + " (heuristic)"]];
    if (given.distance) pairs.push([`distance to Re = ${show(given.distance.s)}`, `proven ≥ ${show(given.distance.lower)}, attained ${show(given.distance.upper)}`]);
    if (given.certificate) {
      pairs.push(["certificate (T8)", `w′ = ${show(given.certificate.w_prime)}, bound ${show(given.certificate.bound)}`]);
      if (given.certificate.S) pairs.push(["S", rows(given.certificate.S)], ["N = ±S V", rows(given.certificate.N)]);
      else pairs.push(["S", `eigenvalues from ${show(given.certificate.S_from)} to ${show(given.certificate.S_to)}`]);
    }
    if (given.warnings.length) pairs.push(["warnings", given.warnings.map((w) => show(w)).join(", ")]);
    document.getElementById("certificate").replaceChildren(...pairs.flatMap(([label, value]) => [element("dt", {}, label), element("dd", {}, show(value))]));
    plane.set([{ name: "eigenvalues", look: "dots", points: given.eigenvalues, colour: "high-2", radius: 4 }], [{ x: 0 }, { y: 0 }]);
  }

  const observable = document.getElementById("observable");
  function observables() {
    const words = series.observable_words;
    if (observable.options.length !== Object.keys(words).length) {
      const before = observable.value || "norm_max";
      observable.replaceChildren(...Object.entries(words).map(([name, [label]]) => element("option", { value: name, selected: name === before }, label)));
    }
    const name = observable.value;
    const [label, log] = words[name];
    const points = series.observables.time.map((t, i) => [t, series.observables[name][i]]).filter(([, v]) => v !== null);
    const usable = log && points.every(([, v]) => v > 0);
    if (!drawn || drawn.name !== name || drawn.log !== usable) {
      measured.replaceChildren();
      drawn = { name, log: usable, chart: toposcope.lines(measured, { name: label, label: `${label} over time`, x: { title: "time", short: "t =", key: "time" }, y: { title: label, log: usable, key: name }, height: 220 }) };
    }
    drawn.chart.set([{ name: label, look: "line", points, colour: "high-2" }]);
    const [first, last] = [points[0]?.[1], points.at(-1)?.[1]];
    text("measured-words", `The ${label}: ${show(first)} at the start, ${show(last)} at t = ${show(series.end)}.`);
  }
  observable.addEventListener("change", observables);

  const status = document.getElementById("status");
  function failed(words) {
    status.textContent = words; status.hidden = !words;
    if (words && document.getElementById("verdict-word").textContent === asking) text("verdict-word", "No answer");
  }
  const ask = toposcope.follow({ address: (settled) => query("/api/flow", values(settled)), show: draw, failed, busy: (is) => document.getElementById("results").setAttribute("aria-busy", is) });
  function change() {
    const { settled, ...shown } = values(false);
    if (encoding.value === "rope") shown.turns = Number((2 ** turns.value).toPrecision(4));
    history.replaceState(null, "", query(location.pathname, shown));
    ask();
  }
  if (source !== "matrices") {
    if (!remembered.has("encoding")) encoding.value = "";
    if (!remembered.has("causal")) causal.value = "";
    if (!touched.n) count.value = source === "preset" ? (presets.find((each) => each.name === preset.value)?.tokens ?? 24) : 16;
    if (source === "head") facts();
  }
  arrange();
  ask();
})();

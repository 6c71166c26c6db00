/* The head browser: a map of layers and heads, and a page for the chosen one. */
"use strict";
(() => {
  const { element, show, span, query } = toposcope;
  const model = toposcope.given("model");
  const status = document.getElementById("status");
  const bar = document.getElementById("progress");
  const detail = document.getElementById("detail");
  const tell = (words) => { status.textContent = words; status.hidden = !words; };
  const text = (id, words) => { document.getElementById(id).textContent = words; };
  let rows = new Map();
  let map = null;
  let asked = 0;

  async function watch() {
    try {
      const found = await toposcope.ask(`/api/models/${model.id}/scan`);
      if (found.state === "failed") { tell(found.error); bar.hidden = true; return; }
      if (found.state !== "done") {
        bar.max = found.total || 1;
        bar.value = found.done;
        text("progress-words", found.total ? `Scanning: ${Math.round(100 * found.done / found.total)}%` : "Waiting for the scan to begin …");
        setTimeout(watch, 400);
        return;
      }
      document.getElementById("waiting").hidden = true;
      if (!found.rows.length) { document.getElementById("nothing").hidden = false; skipped(found); return; }
      draw(found);
    } catch (error) { tell(error.message); setTimeout(watch, 2000); }
  }
  function skipped(found) {
    const list = document.getElementById("skipped");
    list.replaceChildren(...found.skipped.slice(0, 12).map((entry) => element("li", {}, element("code", {}, entry.what), ": " + entry.why)));
    list.parentElement.hidden = !found.skipped.length;
  }
  function draw(found) {
    document.getElementById("scanned").hidden = false;
    const layers = [...new Set(found.rows.map((row) => row.layer))];
    const across = 1 + Math.max(...found.rows.map((row) => row.head));
    rows = new Map(found.rows.map((row) => [row.layer + "." + row.head, row]));
    const table = (read) => layers.map((layer) => Array.from({ length: across }, (_, head) => { const row = rows.get(layer + "." + head); return row ? read(row) : undefined; }));
    const measures = found.measures.map((measure) => ({ ...measure, values: table((row) => row[measure.key]), sure: measure.faded_unless ? table((row) => row[measure.faded_unless]) : null }));
    document.getElementById("map").replaceChildren();
    map = toposcope.heatmap(document.getElementById("map"), { rows: layers, columns: Array.from({ length: across }, (_, i) => i), rowName: "layer", columnName: "head", measures, name: "heads", label: "Map of layers and heads", choose: (i, head) => choose(layers[i], head) });
    document.getElementById("map").append(toposcope.saveButtons(model.name + " heads", () => found.rows));
    const first = found.summary.slice(0, 3); // the map stays on the first screen
    document.getElementById("summary").replaceChildren(...first.map((sentence) => element("li", {}, sentence)));
    text("counts", `Kernels at ${found.context.toLocaleString("en")} tokens.${found.stored ? " From a stored scan." : ""}`);
    skipped(found);
    const wanted = (location.hash.match(/^#(\d+)\.(\d+)$/) || []).slice(1).map(Number);
    const [layer, head] = wanted.length && rows.has(wanted.join(".")) ? wanted : [found.rows[0].layer, found.rows[0].head];
    map.select(layers.indexOf(layer), head);
    choose(layer, head);
    window.toposcopeMap = map;
  }

  const charts = {};
  function chart(id, make) { charts[id] ??= make(document.getElementById(id)); return charts[id]; }
  async function choose(layer, head) {
    const mine = ++asked;
    history.replaceState(null, "", `#${layer}.${head}`);
    try {
      const found = await toposcope.ask(`/api/models/${model.id}/heads/${layer}.${head}`);
      if (mine !== asked) return;
      tell("");
      one(found);
    } catch (error) { if (mine === asked) tell(error.message); }
  }
  function one(found) {
    detail.hidden = false;
    const given = found.verdict_words;
    text("head-name", `Layer ${found.layer}, head ${found.head}`);
    document.getElementById("verdict-dot").className = "dot " + given.verdict;
    text("verdict-word", show(given.verdict) + (given.rule ? `, by ${given.theorem}` : ""));
    text("verdict-statement", given.statement.charAt(0).toUpperCase() + given.statement.slice(1) + ". " + given.meaning.charAt(0).toUpperCase() + given.meaning.slice(1) + ".");
    const row = rows.get(found.layer + "." + found.head) || {};
    const pairs = [["theorem", given.theorem], ["holds for", given.speaks_of], ["exact", given.exact], ["margin", given.margin === null ? "–" : show(given.margin, "percent")], ["survives rounding", given.robust],
      ["real parts of V O", span(given.omega, given.alpha)], ["signs of V O", `${given.n_pos} positive, ${given.n_neg} negative, ${given.n_zero} zero`], ["sym(W)", span(given.w_min, given.w_max)],
      ["growth, spread, pair", [found.growth_index, found.spread_index, found.pair_index].map((v) => show(v)).join(", ") + " (heuristics)"], ["metastable", found.metastable], ...(found.kernel ? [["its kernel", found.kernel.looks]] : []), ["key-value group", found.kv_group], ["encoding", found.encoding]];
    if (row.lambda_max_over_n != null) pairs.push(["shared-content factor", `${show(row.lambda_max_over_n)} (1: position has no effect)`]);
    if (found.rope) pairs.push(["rotation against W: ρ", found.rope.rho], ["diagonal that is enough: τ", found.rope.tau_uniform]);
    if (given.distance) pairs.push([`distance to Re = ${show(given.distance.s)}`, `proven ≥ ${show(given.distance.lower)}, attained ${show(given.distance.upper)}`]);
    if (given.certificate) pairs.push(["certificate (Thm 8)", `w′ = ${show(given.certificate.w_prime)}, bound ${show(given.certificate.bound)}`]);
    if (given.warnings.length) pairs.push(["warnings", given.warnings.map((w) => show(w)).join(", ")]);
    document.getElementById("facts").replaceChildren(...pairs.flatMap(([label, value]) => [element("dt", {}, label), element("dd", {}, show(value))]));
    chart("plane", (at) => toposcope.lines(at, { name: "eigenvalues of V O", label: "eigenvalues of V O in the complex plane", equal: true, x: { title: "real part", short: "real part", key: "real" }, y: { title: "imaginary part", key: "imaginary" } }))
      .set([{ name: "eigenvalues", look: "dots", points: given.eigenvalues, colour: "high-2", radius: 3 }], [{ x: 0 }]);
    document.getElementById("kernel-card").hidden = !found.kernel;
    if (found.kernel) {
      text("kernel-words", `The mean logit of a token with its like, by offset: its kernel ${found.kernel.looks}. Tokens as in ${found.kernel.tokens === "embedding" ? "the embedding" : "a round cloud"}; a heuristic.`);
      chart("kernel", (at) => toposcope.lines(at, { name: "kernel", label: "positional kernel of the head", x: { title: "offset t = i - j", short: "offset", key: "offset" }, y: { title: "logit", key: "logit" }, height: 220 }))
        .set([{ name: "kernel", look: "line", points: found.kernel.offsets.map((t, i) => [t, found.kernel.values[i]]), colour: "high-2" }], found.kernel.peak_offset === null ? [] : [{ x: found.kernel.peak_offset }]);
    }
    const used = found.query_energy.length && found.frequencies;
    document.getElementById("frequency-card").hidden = !used;
    if (used) {
      const points = (energy) => energy.map((share, i) => [2 * Math.PI / found.frequencies[i], share]);
      chart("frequency", (at) => toposcope.lines(at, { name: "frequency use", label: "share of energy by wavelength", x: { title: "wavelength in tokens", short: "wavelength", log: true, key: "wavelength" }, y: { title: "share", min: 0, key: "share" }, height: 220 }))
        .set([{ name: "queries", look: "line", points: points(found.query_energy), colour: "high-2" }, { name: "keys", look: "dash", points: points(found.key_energy), colour: "low-2" }]);
    }
    document.getElementById("to-flow").href = query("/flow", { source: "head", model: model.id, layer: found.layer, head: found.head });
    document.body.dataset.head = `${found.layer}.${found.head}`;
  }
  document.getElementById("go").addEventListener("submit", (event) => {
    event.preventDefault();
    const layer = Number(document.getElementById("go-layer").value), head = Number(document.getElementById("go-head").value);
    if (map && rows.has(layer + "." + head)) map.select([...new Set([...rows.values()].map((row) => row.layer))].indexOf(layer), head);
    choose(layer, head);
  });
  watch();
})();

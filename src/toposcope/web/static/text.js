/* A text under a model: losses, the map of heads, and the attention of the chosen one; again whenever an encoding is put in. */
"use strict";
(() => {
  const { element, query } = toposcope;
  const limits = toposcope.given("limits");
  const field = (id) => document.getElementById(id);
  const tell = (words) => { field("status").textContent = words; field("status").hidden = !words; };
  const busy = (words) => { field("words").textContent = words; field("words").hidden = !words; field("results").setAttribute("aria-busy", String(Boolean(words))); };
  let asked = 0;
  let text = null; // what is shown: the parameters it was asked with
  let chosen = null;
  let view = null;
  let chart = null;

  const given = () => ({ text: field("text").value.trim(), tokens: field("tokens").value, encoding: field("encoding").value.trim(), layers: field("layers").value.trim(), heads: field("heads").value.trim() });
  const address = (parameters, head) => query(`/api/models/${field("model").value}/text${head ? "/" + head : ""}`, parameters);

  /** Ask until the model is loaded; null where something newer is asked meanwhile. */
  async function patiently(path, mine) {
    for (;;) {
      const found = await toposcope.ask(path);
      if (mine !== asked) return null;
      if (found.state === "ready") return found;
      if (found.state === "failed") throw new Error(found.words);
      busy(found.words);
      await new Promise((done) => setTimeout(done, 500));
    }
  }
  async function go() {
    const mine = ++asked;
    const parameters = given();
    tell("");
    if (!parameters.text) { tell("There is no text: write or paste one."); return; }
    if (address(parameters, "99.99").length > limits.address) { tell(`The text is too long for one question: at most ${limits.characters} characters, fewer where they are not Latin.`); return; }
    busy("Computing …");
    try {
      const found = await patiently(address(parameters), mine);
      if (!found) return;
      const fresh = !text || text.text !== parameters.text || text.model !== field("model").value || text.tokens !== parameters.tokens;
      text = { ...parameters, model: field("model").value };
      draw(found, fresh);
      await attend(mine);
      if (mine === asked) busy("");
    } catch (error) { if (mine === asked) { busy(""); tell(error.message); } }
  }

  // -------------------------------------------------------------- losses
  function draw(found, fresh) {
    field("answer").hidden = false;
    field("cut").textContent = `${found.text}; ${found.unit}.`;
    field("no-loss").hidden = found.conditions.length > 0;
    field("chart-card").hidden = !found.conditions.length;
    const body = field("losses");
    if (fresh) body.replaceChildren();
    for (const each of found.conditions) {
      const key = `${each.encoding} ${each.where ?? ""}`;
      const row = element("tr", { "data-key": key, "data-loss": each.loss, "data-difference": each.difference },
        element("td", { class: "left" }, each.encoding === "own" ? "as it is" : each.encoding), element("td", { class: "left" }, each.encoding === "own" ? "" : each.where ?? "everywhere"),
        element("td", {}, each.loss.toFixed(4)), element("td", {}, each.encoding === "own" ? "" : (each.difference > 0 ? "+" : "") + each.difference.toFixed(4)));
      const before = [...body.rows].find((other) => other.dataset.key === key);
      if (before) before.replaceWith(row); else body.append(row);
      for (const other of body.rows) other.removeAttribute("aria-current");
      row.setAttribute("aria-current", "true");
    }
    if (found.conditions.length) {
      const colours = ["high-2", "low-2"];
      const named = (each) => (each.encoding === "own" ? "as it is" : `${each.encoding}${each.where ? ", " + each.where : ""}`);
      chart ??= toposcope.lines(field("chart"), { name: "loss by position", label: "loss by position", x: { title: "position", key: "position", min: 0 }, y: { title: "nats", key: "loss", min: 0 }, height: 220 });
      chart.set(found.conditions.flatMap((each, i) => [
        { name: named(each), look: i ? "dash" : "line", colour: colours[i], points: each.bins.map((bin) => [(bin.first + bin.last) / 2, bin.loss]) },
        { name: named(each) + ", each token", look: "dots", radius: 1.6, colour: colours[i], points: each.losses.map((loss, n) => [each.positions[n], loss]) }]));
    }
    heads(found);
  }

  // -------------------------------------------------------------- heads
  function heads(found) {
    const layers = [...new Set(found.rows.map((row) => row.layer))];
    const across = 1 + Math.max(...found.rows.map((row) => row.head));
    const rows = new Map(found.rows.map((row) => [row.layer + "." + row.head, row]));
    const table = (key) => layers.map((layer) => Array.from({ length: across }, (_, head) => rows.get(layer + "." + head)?.[key]));
    const place = field("map");
    place.replaceChildren();
    const map = toposcope.heatmap(place, { rows: layers, columns: Array.from({ length: across }, (_, i) => i), rowName: "layer", columnName: "head", name: "heads", label: "Map of layers and heads",
      measures: found.measures.map((measure) => ({ ...measure, values: table(measure.key) })), choose: (i, head) => { if (rows.has(layers[i] + "." + head)) { chosen = [layers[i], head]; again(); } } });
    place.append(toposcope.saveButtons("heads on the text", () => found.rows));
    if (!chosen || !rows.has(chosen.join("."))) {
      const order = ["induction", "previous", "next"];
      const best = order.map((name) => found.rows.filter((row) => row["on_" + name] !== null).sort((a, b) => b["on_" + name] - a["on_" + name])[0]).find((row) => row && row.pattern !== "none") || found.rows[0];
      chosen = [best.layer, best.head];
    }
    map.select(layers.indexOf(chosen[0]), chosen[1]);
    window.toposcopeMap = map;
  }
  async function again() {
    const mine = ++asked;
    try { await attend(mine); if (mine === asked) tell(""); } catch (error) { if (mine === asked) tell(error.message); }
  }
  async function attend(mine) {
    const { model, ...parameters } = text;
    const found = await patiently(address(parameters, chosen.join(".")), mine);
    if (!found) return;
    if (view) view.set(found.windows);
    else view = toposcope.attention(field("attention"), { name: "attention", label: "attention", windows: found.windows });
    for (const button of document.querySelectorAll("[data-off]")) {
      button.disabled = false;
      if (button.dataset.off === "layer") button.textContent = `Off in layer ${chosen[0]}`;
      if (button.dataset.off === "head") button.textContent = `Off in head ${chosen.join(".")}`;
    }
    document.body.dataset.head = chosen.join(".");
    document.body.dataset.encoding = `${text.encoding} ${text.layers} ${text.heads}`.trim();
  }
  for (const button of document.querySelectorAll("[data-off]")) button.addEventListener("click", () => {
    const where = button.dataset.off;
    field("encoding").value = where === "own" ? "" : "none";
    field("layers").value = where === "layer" ? chosen[0] : "";
    field("heads").value = where === "head" ? chosen.join(".") : "";
    go();
  });
  field("controls").addEventListener("submit", (event) => { event.preventDefault(); go(); });
  const wanted = new URLSearchParams(location.search).get("model");
  if (wanted && [...field("model").options].some((option) => option.value === wanted)) field("model").value = wanted;
})();

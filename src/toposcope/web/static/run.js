/* A run's learning curve. */
"use strict";
(() => {
  const curve = toposcope.given("curve");
  const place = document.getElementById("learning");
  if (!place || !curve.length) return;
  const points = (name) => curve.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name]]);
  const percent = (value) => Number((100 * value).toPrecision(4)) + " %";
  for (const [name, title, words, colour, format] of [["accuracy", "Accuracy", "On test sentences.", "high-2", percent], ["loss", "Training loss", "On the sentences of each step, in nats.", "low-2"]]) {
    const at = toposcope.element("div");
    place.append(toposcope.element("figure", { class: "card" }, toposcope.element("figcaption", {}, toposcope.element("h3", {}, title), toposcope.element("p", {}, words)), at));
    toposcope.lines(at, { name: `${name} by step`, label: `${name} over training`, x: { title: "step", short: "step", key: "step" }, y: { title: name, min: 0, key: name, format } })
      .set([{ name, look: "line", points: points(name), colour }]);
  }
})();

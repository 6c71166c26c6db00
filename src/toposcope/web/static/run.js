/* A run's learning curve. */
"use strict";
(() => {
  const curve = toposcope.given("curve");
  const place = document.getElementById("learning");
  if (!place || !curve.length) return;
  const points = (name) => curve.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name]]);
  toposcope.lines(place, { name: "learning curve", label: "loss and accuracy over training", x: { title: "step", short: "step", key: "step" }, y: { title: "loss, accuracy", key: "value" } })
    .set([{ name: "training loss", look: "line", points: points("loss"), colour: "low-2" }, { name: "accuracy", look: "line", points: points("accuracy"), colour: "high-2" }]);
})();

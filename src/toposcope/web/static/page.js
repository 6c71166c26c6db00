/* What all pages of the server share: the remembered theme, controls, and questions that never pile up. */
"use strict";
try {
  const before = localStorage.getItem("toposcope-theme");
  if (before === "dark" || before === "light") document.documentElement.dataset.theme = before;
} catch { /* then the system's wish counts */ }
document.addEventListener("DOMContentLoaded", () => toposcope.theme.start());

/** Ask the server; a refusal becomes an error with its sentence. */
toposcope.ask = async (address, signal) => {
  let answer;
  try {
    answer = await fetch(address, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is 'toposcope serve' still running?");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || "the server refused, without a reason");
  return found;
};

/* Questions that follow a hand: one at a time, the newest next, and a thorough one when the hand rests.
   toposcope.follow({ address(settled), show(answer), failed(words), asked(busy) })  ->  ask() */
toposcope.follow = ({ address, show, failed, busy = () => {} }) => {
  let running = false;
  let again = false;
  let number = 0;
  let rest = null;
  let thorough = null;
  async function settle(mine) {
    thorough = new AbortController();
    busy(true);
    try {
      const found = await toposcope.ask(address(true), thorough.signal);
      if (mine === number) show(found);
    } catch (error) {
      if (error.name !== "AbortError" && mine === number) failed(error.message);
    } finally {
      if (mine === number) busy(false);
    }
  }
  async function go() {
    running = true;
    do {
      again = false;
      const mine = number;
      try {
        const found = await toposcope.ask(address(false));
        if (!again || mine === number) { show(found); failed(""); }
        clearTimeout(rest);
        if (mine === number) rest = setTimeout(() => settle(mine), 250);
      } catch (error) {
        if (mine === number) failed(error.message);
      }
    } while (again);
    running = false;
  }
  return () => {
    number += 1;
    clearTimeout(rest);
    thorough?.abort();
    busy(false);
    if (running) again = true;
    else go();
  };
};

/* A slider with its label and value. `scale` maps the slider's number to the value: "log2" or "log10" for powers. */
toposcope.slider = ({ id, label, min, max, step, value, scale, format, hint, change }) => {
  const { element } = toposcope;
  const to = scale === "log2" ? (x) => Math.round(2 ** x) : scale === "log10" ? (x) => Number((10 ** x).toPrecision(2)) : (x) => Number(x.toFixed(6));
  const from = scale === "log2" ? Math.log2 : scale === "log10" ? Math.log10 : (x) => x;
  const input = element("input", { type: "range", id, name: id, min, max, step, value: from(value) });
  const output = element("output", { for: id });
  const shown = format || ((x) => x.toLocaleString("en"));
  const field = element("label", { class: "field", for: id }, element("span", { class: "between" }, label, output), input);
  if (hint) field.title = hint;
  function words() {
    output.textContent = shown(to(Number(input.value)));
    input.setAttribute("aria-valuetext", output.textContent);
  }
  input.addEventListener("input", () => { words(); change?.(); });
  words();
  return {
    field, input,
    get value() { return to(Number(input.value)); },
    set value(x) { input.value = from(x); words(); },
    /** Show a value that lies between two steps of the slider as it is. */
    tell(x) { this.value = x; output.textContent = shown(x); input.setAttribute("aria-valuetext", output.textContent); },
  };
};

toposcope.choice = ({ id, label, options, value, change }) => {
  const { element } = toposcope;
  const select = element("select", { id, name: id });
  for (const each of options) {
    const [name, words] = Array.isArray(each) ? each : [each, each];
    select.append(element("option", { value: name, selected: name === value }, words));
  }
  select.addEventListener("change", () => change?.());
  return { field: element("label", { class: "field", for: id }, label, select), input: select, get value() { return select.value; }, set value(x) { select.value = x; } };
};

toposcope.tick = ({ id, label, value, change }) => {
  const { element } = toposcope;
  const input = element("input", { type: "checkbox", id, name: id, checked: value });
  input.addEventListener("change", () => change?.());
  return { field: element("label", { class: "tick", for: id }, input, " " + label), input, get value() { return input.checked; }, set value(x) { input.checked = x; } };
};

/** Parameters as an address; empty ones are left out. */
toposcope.query = (path, values) => {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== "" && value !== null && value !== undefined) given.set(name, value);
  return path + "?" + given;
};

/** Data that the page was made with. */
toposcope.given = (id) => JSON.parse(document.getElementById(id).textContent);

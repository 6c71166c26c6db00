/* Round a page by the Tab key: `walk.start()` listens, keys are pressed from outside until `walk.round`, `walk.missed()` tells. */
window.walk = (() => {
  const walked = new Set();
  const blind = [];
  const first = document.createElement("button");
  const words = (each) => each.outerHTML.slice(0, 120);
  const reached = (each) => walked.has(each) || (each.type === "radio" && [...walked].some((one) => one.name === each.name));
  const pointed = (each) => getComputedStyle(each).cursor === "pointer" && getComputedStyle(each.parentElement).cursor !== "pointer";
  const seen = (each) => each.checkVisibility() && each.getBoundingClientRect().width > 0;
  /** Itself, what holds it and acts for it, and what it stands for: one of them must be reached, or is switched off. */
  const stand = (each) => [each, each.closest("[role=listbox], a, button, summary, label"), each.control, ...each.querySelectorAll("input, :disabled")];

  const walk = {
    round: false,
    start() {
      document.body.prepend(first);
      first.focus();
      walked.add(first);
      document.addEventListener("focusin", ({ target }) => {
        walk.round ||= walked.has(target);
        walked.add(target);
        const look = getComputedStyle(target.matches(".segments input") ? target.closest("label") : target);
        if (target !== first && (look.outlineStyle === "none" || parseFloat(look.outlineWidth) < 2)) blind.push(target);
      });
    },
    missed() {
      first.remove();
      const all = [...document.querySelectorAll("body *")].filter((each) => seen(each) && !each.disabled
        && (each.matches("a[href], button, input, select, textarea, summary, [tabindex]") || pointed(each)));
      const lost = all.filter((each) => !stand(each).some((one) => one && (reached(one) || one.disabled)));
      return [...lost.map((each) => "not reached: " + words(each)), ...blind.map((each) => "focus is not seen: " + words(each))];
    },
  };
  return walk;
})();

// Draws each block of mermaid in the page, in the theme's light or dark; without scripts its text stays.
const blocks = [...document.querySelectorAll(".highlight-mermaid pre")].map((shown) => ({ shown, text: shown.textContent }));

let drawing = Promise.resolve();

// One time after another: two at a time would give two diagrams the same id.
function draw() {
  drawing = drawing.then(drawAll);
}

async function drawAll() {
  const chosen = document.body.dataset.theme;
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral" });
  for (const [index, { shown, text }] of blocks.entries()) {
    try {
      shown.innerHTML = (await mermaid.render(`diagram-${index}`, text)).svg;
    } catch (error) {
      console.error(error); // its text stays, and the others are drawn
    }
  }
}

if (blocks.length) {
  draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// Draws each block of mermaid in the page, in the theme's light or dark; without scripts its text stays.
const blocks = [...document.querySelectorAll(".highlight-mermaid pre")].map((shown) => ({ shown, text: shown.textContent }));

async function draw() {
  const chosen = document.body.dataset.theme;
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral" });
  for (const [index, { shown, text }] of blocks.entries()) {
    const { svg } = await mermaid.render(`diagram-${index}`, text);
    shown.innerHTML = svg;
  }
}

if (blocks.length) {
  draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

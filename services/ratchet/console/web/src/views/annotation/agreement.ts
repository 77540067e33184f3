// What a figure of agreement means. Nothing here touches the page.

import type { Tone } from "../../ui/status.tsx";

/** Krippendorff's own limits: .8 to rely on, .667 for tentative conclusions. */
export function alphaInWords(alpha: number | null): { readonly tone: Tone; readonly text: string } {
  if (alpha === null) return { tone: "none", text: "nothing to compare yet" };
  if (alpha >= 0.8) return { tone: "good", text: "reliable" };
  if (alpha >= 0.667) return { tone: "warn", text: "tentative" };
  return { tone: "warn", text: alpha <= 0 ? "no better than chance" : "weak" };
}

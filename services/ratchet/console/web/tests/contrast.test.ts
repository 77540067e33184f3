import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const CSS = readFileSync(new URL("../src/styles/tokens.css", import.meta.url), "utf8");
const TEXT = 4.5;
const SIGN = 3;
const SURFACES = ["bg", "surface", "raised", "hover"];
/** What is read on what, and the least contrast of WCAG 2.2 AA: 4.5 for text, 3 for signs and edges of controls. */
const PAIRS: readonly (readonly [front: string, backs: readonly string[], least: number])[] = [
  ["text", [...SURFACES, "sunken", "accent-bg", "good-bg", "warn-bg", "bad-bg", "info-bg", "band"], TEXT],
  ["muted", [...SURFACES, "sunken", "accent-bg", "good-bg", "warn-bg", "bad-bg", "info-bg"], TEXT],
  ["accent", [...SURFACES, "sunken", "accent-bg", "warn-bg", "bad-bg"], TEXT],
  ["good", [...SURFACES, "good-bg"], TEXT],
  ["warn", [...SURFACES, "warn-bg", "bad-bg"], TEXT],
  ["bad", [...SURFACES, "bad-bg"], TEXT],
  ["info", [...SURFACES, "info-bg"], TEXT],
  ["on-fill", ["accent-fill", "bad-fill"], TEXT],
  ["line-strong", ["surface", "bg", "raised"], SIGN],
  ...[1, 2, 3, 4, 5, 6].map((place) => [`series-${place}`, ["surface", "band"], SIGN] as const),
];

for (const [place, theme] of ["light", "dark"].entries()) {
  test(`colours of the ${theme} theme have the contrast of WCAG AA`, () => {
    const weak = PAIRS.flatMap(([front, backs, least]) => backs
      .map((back) => ({ front, back, least, has: contrast(colour(front, place), colour(back, place)) }))
      .filter(({ has }) => has < least));
    assert.deepEqual(weak, []);
  });
}

test("the measure is WCAG's", () => {
  assert.equal(contrast("#000000", "#ffffff"), 21);
  assert.ok(Math.abs(contrast("#777777", "#ffffff") - 4.48) < 0.01);
});

function colour(name: string, place: number): string {
  const value = new RegExp(`--${name}: ([^;]+);`).exec(CSS)?.[1] ?? assert.fail(`no colour ${name}`);
  const both = value.match(/#[0-9a-f]{6}\b/g) ?? assert.fail(`${name} is ${value}`);
  return both[place] ?? both[0] ?? assert.fail(name);
}

function contrast(one: string, other: string): number {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

function luminance(hex: string): number {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

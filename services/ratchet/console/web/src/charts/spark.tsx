// A small line without axes, beside its latest value.

import { lineStyle } from "./line.tsx";

export function Spark({ name, value, points, colour = 1, low, over = "in the last hour" }: {
  name: string; value: string;
  /** Null: nothing is known there. */
  points: readonly (number | null)[]; colour?: number;
  /** Where the picture begins; by default the smallest value. */
  low?: number;
  /** What the points stand for. */
  over?: string;
}) {
  const known = points.filter((point) => point !== null);
  const least = low ?? known.reduce((a, b) => Math.min(a, b), Infinity);
  const largest = known.reduce((a, b) => Math.max(a, b), least);
  const height = (point: number) => 38 - ((point - least) / (largest - least || 1)) * 36;
  return (
    <div class="spark">
      <div class="top"><b>{value}</b><span class="muted small">{name}</span></div>
      <svg viewBox="0 0 200 40" preserveAspectRatio="none" role="img" aria-label={`${name} ${over}: now ${value}`}>
        <path class="line" d={path(points, height)} {...lineStyle(0, colour)} fill="none" stroke-width="1.5" vector-effect="non-scaling-stroke" />
      </svg>
    </div>
  );
}

function path(points: readonly (number | null)[], height: (point: number) => number): string {
  let isDown = false;
  return points.map((point, at) => {
    if (point === null) {
      isDown = false;
      return "";
    }
    const move = `${isDown ? "L" : "M"}${((at / Math.max(1, points.length - 1)) * 200).toFixed(1)} ${height(point).toFixed(1)}`;
    isDown = true;
    return move;
  }).join("");
}

// Scales and their ticks. Nothing here touches the page.

export interface Scale {
  /** A value's place between the two ends of `range`. */
  readonly at: (value: number) => number;
  readonly ticks: readonly number[];
}

export type Kind = "linear" | "log" | "time";

export function scale(kind: Kind, domain: readonly [number, number], range: readonly [number, number], most: number): Scale {
  if (kind === "log") return logScale(domain, range, most);
  const ticks = kind === "time" ? timeTicks(domain, most) : linearTicks(domain, most);
  return { at: (value) => range[0] + ((value - domain[0]) / (domain[1] - domain[0])) * (range[1] - range[0]), ticks };
}

function logScale(domain: readonly [number, number], range: readonly [number, number], most: number): Scale {
  const [low, high] = [Math.log10(domain[0]), Math.log10(domain[1])];
  const at = (value: number) => {
    const place = (Math.log10(Math.max(value, domain[0])) - low) / (high - low);
    return range[0] + place * (range[1] - range[0]);
  };
  const [first, last] = [Math.ceil(low - 1e-9), Math.floor(high + 1e-9)];
  const every = Math.max(1, Math.ceil((last - first + 1) / most));
  const exponents = Array.from({ length: last - first + 1 }, (_, place) => first + place);
  return { at, ticks: exponents.filter((exponent) => exponent % every === 0).map((exponent) => 10 ** exponent) };
}

export function linearTicks(domain: readonly [number, number], most: number): number[] {
  const [low, high] = domain;
  const raw = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((each) => each * power >= raw * (1 - 1e-9)) ?? 10) * power;
  const ticks: number[] = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) ticks.push(Number((place * step).toPrecision(12)));
  return ticks;
}

const STEPS_MS = [1, 5, 15, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000].map((s) => s * 1000);

export function timeTicks(domain: readonly [number, number], most: number): number[] {
  const [low, high] = domain;
  const step = STEPS_MS.find((each) => (high - low) / each <= most) ?? (high - low) / most;
  // Whole hours and days of the reader's time zone.
  const shift = new Date(low).getTimezoneOffset() * 60_000;
  const ticks: number[] = [];
  for (let tick = Math.ceil((low - shift) / step) * step + shift; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

/** The ends of an axis that shows all `values`: with some air, and never of length 0. */
export function domainOf(values: readonly number[], kind: Kind): [number, number] {
  const known = values.filter((value) => Number.isFinite(value) && (kind !== "log" || value > 0));
  if (known.length === 0) return kind === "log" ? [0.1, 10] : [0, 1];
  const low = known.reduce((a, b) => Math.min(a, b));
  const high = known.reduce((a, b) => Math.max(a, b));
  if (kind === "time") return low === high ? [low - 30_000, high + 30_000] : [low, high];
  if (kind === "log") return [10 ** Math.floor(Math.log10(low) - 0.05), 10 ** Math.ceil(Math.log10(high) + 0.05)];
  const air = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - air < 0 ? 0 : low - air, high + air];
}

/** The number of the point whose x is nearest. `xs` grow. */
export function nearest(xs: readonly number[], x: number): number {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? 0) < x) low = middle;
    else high = middle;
  }
  return Math.abs((xs[low] ?? 0) - x) <= Math.abs((xs[high] ?? 0) - x) ? low : high;
}

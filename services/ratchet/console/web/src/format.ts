// Numbers, times and texts as people read them. Nothing here touches the page.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SUFFIXES: readonly [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

/** A count: 9,412; 41.2k; 3.1M. */
export function count(value: number): string {
  const size = Math.abs(value);
  if (size < 1e4) return GROUPED.format(value);
  const [unit, suffix] = SUFFIXES.find(([least]) => size >= least) ?? [1, ""];
  const divisor = suffix === "k" ? 1e3 : unit;
  return `${trimmed(value / divisor, 3)}${suffix}`;
}

/** A measured number with `digits` significant ones: 0.0123, 1.2e-7, 431. */
export function measure(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
  return size >= 1000 ? GROUPED.format(value) : trimmed(value, digits);
}

/** A difference of shares with its sign, all as precise: +0.120, −0.031, ±0. */
export function signed(value: number): string {
  const digits = Math.abs(value).toFixed(3);
  return Number(digits) === 0 ? "±0" : `${value > 0 ? "+" : "−"}${digits}`;
}

/** A share of one as per cent: 12.3 %. */
export function share(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${trimmed(value * 100, 3)} %`;
}

/** A relative difference with its sign: +12.3 %, −4 %, ±0 %. */
export function signedShare(value: number): string {
  const text = share(Math.abs(value));
  return `${text === "0 %" ? "±" : value > 0 ? "+" : "−"}${text}`;
}

/** US dollars: $0.0031, $12.4. */
export function dollars(value: number): string {
  return `$${measure(value)}`;
}

/** Seconds as the two largest units: 340 ms, 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h. */
export function duration(seconds: number): string {
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${trimmed(seconds, 2)} s`;
  const whole = Math.round(seconds);
  const units: readonly [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([size]) => whole >= size);
  const parts = units.slice(first, first + 2).map(([size, name], place) => {
    const before = place === 0 ? whole : whole % (units[first]?.[0] ?? 1);
    return [Math.floor(before / size), name] as const;
  });
  return parts.filter(([number]) => number > 0).map(([number, name]) => `${number} ${name}`).join(" ");
}

/** How long ago, at the time `now`: now, 12 s ago, in 3 min. */
export function ago(instant: string, now: number): string {
  const seconds = (now - Date.parse(instant)) / 1000;
  if (Number.isNaN(seconds)) return instant;
  if (Math.abs(seconds) < 2) return "now";
  const [unit, name] = largestUnit(Math.abs(seconds));
  const words = `${Math.floor(Math.abs(seconds) / unit)} ${name}`;
  return seconds > 0 ? `${words} ago` : `in ${words}`;
}

function largestUnit(seconds: number): readonly [number, string] {
  const units: readonly [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"]];
  return units.find(([size]) => seconds >= size) ?? [1, "s"];
}

const DATE = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat("en", { month: "short", day: "numeric" });

/** An instant in the reader's time zone. */
export function instant(value: string): string {
  const parsed = Date.parse(value);
  return Number.isNaN(parsed) ? value : DATE.format(parsed);
}

/** Milliseconds as 14:05, at midnight as Mar 4. */
export function tickName(milliseconds: number): string {
  const at = new Date(milliseconds);
  return at.getHours() === 0 && at.getMinutes() === 0 ? DAY.format(at) : CLOCK.format(at);
}

/** Bytes: 812 B, 4.1 MB. */
export function bytes(value: number): string {
  const unit = [1e12, 1e9, 1e6, 1e3].find((size) => value >= size);
  const names: Record<number, string> = { 1e12: "TB", 1e9: "GB", 1e6: "MB", 1e3: "kB" };
  return unit === undefined ? `${value} B` : `${trimmed(value / unit, 3)} ${names[unit]}`;
}

/** One or many: plural(1, "job") is "1 job". */
export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** awaiting_approval -> awaiting approval. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** The beginning of a long id; its end for those that begin alike (`<time>-<random>`). */
export function shortId(id: string): string {
  return id.length <= 16 ? id : `${id.slice(0, 8)}…${id.slice(-4)}`;
}

export interface Piece {
  readonly text: string;
  /** The sign that stands for a control character; `name` says which. */
  readonly name?: string;
}

// C0 but tab and newline, DEL, C1, zero-width and directional characters, line separators, tags, and the BOM.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** A text in pieces, in which every character that one would not see is a piece of its own that one sees. */
export function visible(text: string): Piece[] {
  const pieces: Piece[] = [];
  let end = 0;
  for (const match of text.matchAll(CONTROL)) {
    if (match.index > end) pieces.push({ text: text.slice(end, match.index) });
    pieces.push(sign(match[0].codePointAt(0) ?? 0));
    end = match.index + match[0].length;
  }
  if (end < text.length) pieces.push({ text: text.slice(end) });
  return pieces;
}

function sign(code: number): Piece {
  const name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  return { text: `‹${name}›`, name };
}

function trimmed(value: number, digits: number): string {
  const text = value.toPrecision(digits);
  return String(Number(text));
}

/** A policy by its name; the model instead where agents ask a provider and the role has no policy (version 0). */
export function answeredBy(policy: string | null, model: string | null): string | null {
  return policy?.endsWith("@0") === true && model !== null ? model : policy;
}

/** An instant as the browser's field of date and time wants it, in the reader's time zone. */
export function toField(instant: string): string {
  const at = Date.parse(instant);
  if (Number.isNaN(at)) return "";
  return new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export function fromField(value: string): string {
  const at = Date.parse(value);
  return Number.isNaN(at) ? "" : new Date(at).toISOString();
}

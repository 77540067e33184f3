// Two texts side by side, line by line. Nothing here touches the page.

export interface Row {
  /** The line of the text before; null where it has none here. */
  readonly before: string | null;
  readonly after: string | null;
}

/** Lines that differ, with a few around them, or so many equal lines that are left out. */
export type Block = { readonly rows: readonly Row[] } | { readonly equal: readonly Row[] };

/** So many lines may come and go; texts that differ more have nothing in common that helps a reader. */
const MOST_EDITS = 1_000;
/** Equal lines around a change. */
const AROUND = 3;

/** The lines of both texts, equal ones beside each other: the fewest lines come and go (Myers, 1986). */
export function aligned(before: string | null, after: string | null): Row[] {
  const old = before === null ? [] : before.split("\n");
  const fresh = after === null ? [] : after.split("\n");
  const shorter = Math.min(old.length, fresh.length);
  let start = 0;
  while (start < shorter && old[start] === fresh[start]) start++;
  let end = 0;
  while (end < shorter - start && old[old.length - 1 - end] === fresh[fresh.length - 1 - end]) end++;
  const equal = (lines: readonly string[]) => lines.map((line) => ({ before: line, after: line }));
  return [
    ...equal(old.slice(0, start)),
    ...between(old.slice(start, old.length - end), fresh.slice(start, fresh.length - end)),
    ...equal(old.slice(old.length - end)),
  ];
}

function between(old: readonly string[], fresh: readonly string[]): Row[] {
  const rows: Row[] = [];
  let gone = 0;
  let come = 0;
  const change = (toOld: number, toFresh: number) => {
    for (; gone < toOld || come < toFresh; ) {
      rows.push({ before: gone < toOld ? (old[gone++] ?? "") : null, after: come < toFresh ? (fresh[come++] ?? "") : null });
    }
  };
  for (const [at, to] of common(old, fresh)) {
    change(at, to);
    rows.push({ before: old[gone++] ?? "", after: fresh[come++] ?? "" });
  }
  change(old.length, fresh.length);
  return rows;
}

/** Places of the lines that stay, in order: [place in `old`, place in `fresh`]. */
function common(old: readonly string[], fresh: readonly string[]): [number, number][] {
  const most = Math.min(MOST_EDITS, old.length + fresh.length);
  // How far in `old` so many edits come on the diagonal k = place in old - place in fresh, at k + most + 1.
  const reached = new Int32Array(2 * most + 3);
  const trail: Int32Array[] = [];
  for (let edits = 0; edits <= most; edits++) {
    trail.push(reached.slice());
    for (let k = -edits; k <= edits; k += 2) {
      let at = isDown(reached, k, edits) ? reach(reached, k + 1) : reach(reached, k - 1) + 1;
      while (at < old.length && at - k < fresh.length && old[at] === fresh[at - k]) at++;
      reached[k + most + 1] = at;
      if (at >= old.length && at - k >= fresh.length) return walked(trail, old.length, fresh.length);
    }
  }
  return [];
}

function reach(reached: Int32Array, k: number): number {
  return reached[k + (reached.length - 1) / 2] ?? 0;
}

/** Whether the edit that leads to a diagonal is a line that comes, and not one that goes. */
function isDown(reached: Int32Array, k: number, edits: number): boolean {
  return k === -edits || (k !== edits && reach(reached, k - 1) < reach(reached, k + 1));
}

function walked(trail: readonly Int32Array[], oldEnd: number, freshEnd: number): [number, number][] {
  const same: [number, number][] = [];
  let [at, to] = [oldEnd, freshEnd];
  for (const [edits, reached] of [...trail.entries()].reverse()) {
    const isComing = isDown(reached, at - to, edits);
    const begin = isComing ? reach(reached, at - to + 1) : reach(reached, at - to - 1) + 1;
    while (at > begin && to > 0) same.push([--at, --to]);
    if (isComing) to--;
    else at--;
  }
  return same.reverse();
}

/** Changes with the lines around them; between them what is equal. */
export function blocks(rows: readonly Row[]): Block[] {
  const shown = new Uint8Array(rows.length);
  rows.forEach((row, at) => {
    if (row.before !== row.after) shown.fill(1, Math.max(0, at - AROUND), at + AROUND + 1);
  });
  const made: Block[] = [];
  for (let start = 0, end = 0; start < rows.length; start = end) {
    while (end < rows.length && shown[end] === shown[start]) end++;
    const part = rows.slice(start, end);
    made.push(shown[start] === 1 || part.length === 1 ? { rows: part } : { equal: part });
  }
  return made;
}

type Pieces = readonly [string, string, string];

/** Two lines in three each: what both have before the change, the change, what both have after it. */
export function pieces(old: string, fresh: string): { readonly before: Pieces; readonly after: Pieces } {
  const shorter = Math.min(old.length, fresh.length);
  let start = 0;
  while (start < shorter && old[start] === fresh[start]) start++;
  let end = 0;
  while (end < shorter - start && old[old.length - 1 - end] === fresh[fresh.length - 1 - end]) end++;
  // Whole words change, and no character is cut in two.
  while (start > 0 && IN_WORD.test(old[start - 1] ?? "")) start--;
  while (end > 0 && IN_WORD.test(old[old.length - end] ?? "")) end--;
  const cut = (line: string): Pieces => [line.slice(0, start), line.slice(start, line.length - end), line.slice(line.length - end)];
  return { before: cut(old), after: cut(fresh) };
}

const IN_WORD = /[\p{L}\p{N}_\ud800-\udfff]/u;

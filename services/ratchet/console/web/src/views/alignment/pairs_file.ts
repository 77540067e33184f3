// A file of pairs in parts that the console takes. Nothing here touches the page.

/** Letters of a part; a longer line is a part of its own. */
const MOST = 500_000;

export interface Part {
  /** Lines of the file before it. */
  readonly before: number;
  readonly lines: string;
}

/** Whole lines, in parts of so many letters at most. */
export function partsOf(text: string, most = MOST): Part[] {
  const parts: { before: number; lines: string }[] = [];
  for (const [at, line] of text.split("\n").entries()) {
    const last = parts.at(-1);
    if (last === undefined || last.lines.length + line.length >= most) parts.push({ before: at, lines: line });
    else last.lines += `\n${line}`;
  }
  return parts;
}

// Two texts side by side: what came and went is marked, what is equal is folded away. Narrow windows stack them.

import type { ComponentType } from "preact";
import { useMemo, useState } from "preact/hooks";
import { count, plural } from "../format.ts";
import { DataText } from "../ui/text.tsx";
import { aligned, blocks, pieces, type Block, type Row } from "./diff.ts";

/** Lines that a browser lays out in a moment. */
const STEP = 400;
/** Letters of a line beside its change, and of the change itself. */
const BESIDE = 300;
const CHANGE = 4_000;

type Shown = ComponentType<{ text: string; most?: number }>;

/** null: a text that is not there; `as`: how pieces of the texts are shown. */
export function SideBySide({ before, after, names, what, as = DataText }: {
  before: string | null; after: string | null; names: readonly [string, string]; what: string; as?: Shown;
}) {
  const folded = useMemo(() => blocks(aligned(before, after)), [before, after]);
  const [open, setOpen] = useState<ReadonlySet<Block>>(new Set());
  const [most, setMost] = useState(STEP);
  const lines = folded.flatMap((block): (Row | Block)[] => ("rows" in block ? [...block.rows] : open.has(block) ? [...block.equal] : [block]));
  const left = lines.length - most;
  return (
    <>
      <table class="diff">
        <caption class="hidden">{what}: {names[0]} beside {names[1]}</caption>
        <thead><tr>{names.map((name) => <th key={name} scope="col"><DataText text={name} /></th>)}</tr></thead>
        <tbody>
          {lines.slice(0, most).map((line, at) => "equal" in line
            ? <tr key={at}><td colSpan={2} class="fold"><button type="button" class="button quiet small" onClick={() => setOpen(new Set([...open, line]))}>{plural(line.equal.length, "equal line")}</button></td></tr>
            : "before" in line && <Line key={at} row={line} as={as} />)}
        </tbody>
      </table>
      {left > 0 && <button type="button" class="button small" onClick={() => setMost(most + STEP * 5)}>More of {count(left)} further lines</button>}
    </>
  );
}

function Line({ row, as: Shown }: { row: Row; as: Shown }) {
  const { before, after } = row;
  if (before !== null && before === after) return <tr><td class="twin"><Shown text={before} most={CHANGE} /></td><td><Shown text={before} most={CHANGE} /></td></tr>;
  const parts = before === null || after === null ? null : pieces(before, after);
  return (
    <tr>
      {before === null ? <td class="none" /> : <td class="gone"><Changed text={before} parts={parts?.before} as={Shown} /></td>}
      {after === null ? <td class="none" /> : <td class="come"><Changed text={after} parts={parts?.after} as={Shown} /></td>}
    </tr>
  );
}

/** `parts`: before the change, the change, after it; of a line that stands beside none: nothing. */
function Changed({ text, parts, as: Shown }: { text: string; parts: readonly [string, string, string] | undefined; as: Shown }) {
  if (parts === undefined) return <Shown text={text} most={CHANGE} />;
  const [first, change, last] = parts;
  return (
    <>
      {first.length > BESIDE && "… "}<Shown text={first.slice(-BESIDE)} />
      {change !== "" && <mark><Shown text={change} most={CHANGE} /></mark>}
      <Shown text={last.slice(0, BESIDE)} />{last.length > BESIDE && " …"}
    </>
  );
}

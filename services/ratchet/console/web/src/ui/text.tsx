// Text that comes from data. It is only ever a text node, and shows the characters that one would not see.

import { useState } from "preact/hooks";
import { shortId, visible } from "../format.ts";
import { say } from "./announce.tsx";

export function DataText({ text, most }: { text: string; most?: number }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = most !== undefined && text.length > most && !isWhole;
  const shown = isCut ? text.slice(0, most) : text;
  return (
    <>
      {visible(shown).map((piece, at) =>
        piece.name === undefined ? piece.text : <span key={at} class="control" title={piece.name}>{piece.text}</span>)}
      {isCut && (
        <>… <button type="button" class="button quiet small" onClick={() => setWhole(true)}>show all {text.length.toLocaleString("en")} letters</button></>
      )}
    </>
  );
}

/** A name that stays on its line where it is short. */
export function Short({ text }: { text: string }) {
  return <span class={text.length <= 24 ? "nowrap" : "wrap"}><DataText text={text} most={80} /></span>;
}

/** An id in short; a click copies the whole. */
export function Id({ id, label = "id", shown = shortId(id) }: { id: string; label?: string; shown?: string }) {
  return (
    <button type="button" class="button quiet small id" title={`${id} (click to copy)`} onClick={() => void copy(id, label)}>
      {shown}<span class="hidden">, copy the {label}</span>
    </button>
  );
}

/** `<role>@<version>-<digest>`, on one line where there is room. */
export function PolicyName({ name }: { name: string }) {
  return <span class={name.length <= 48 ? "id nowrap" : "id"}><DataText text={name} /></span>;
}

async function copy(text: string, label: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say(`Copied the ${label}.`);
  } catch {
    say(`The browser does not allow copying. The ${label} is ${text}`, "warn");
  }
}

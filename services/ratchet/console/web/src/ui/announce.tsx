// Short messages: shown for a while at the corner, and read out.

import { Store, useStore } from "../store.ts";
import { Icon } from "./icons.tsx";
import type { Tone } from "./status.tsx";
import { DataText } from "./text.tsx";

const SHOWN_MS = 8_000;

interface Note {
  readonly id: number;
  readonly tone: Tone;
  readonly text: string;
}

const notes = new Store<readonly Note[]>([]);
let last = 0;

export function say(text: string, tone: Tone = "good"): void {
  const note = { id: ++last, tone, text };
  notes.set([...notes.value.slice(-2), note]);
  setTimeout(() => drop(note.id), SHOWN_MS);
}

function drop(id: number): void {
  notes.set(notes.value.filter((note) => note.id !== id));
}

export function Notes() {
  const shown = useStore(notes);
  return (
    <div class="notes" role="status" aria-live="polite">
      {shown.map((note) => (
        <div key={note.id} class="banner" data-tone={note.tone}>
          <Icon name={note.tone === "good" ? "good" : note.tone === "info" ? "info" : "warn"} />
          <p><DataText text={note.text} /></p>
          <button type="button" class="button quiet small" aria-label="Dismiss" onClick={() => drop(note.id)}><Icon name="close" size={12} /></button>
        </div>
      ))}
    </div>
  );
}

// A long text in growing parts: what came with the page, then the whole of it on demand, 20 MB and all.

import type { ComponentType } from "preact";
import { useState } from "preact/hooks";
import { ApiError, errorMessage, ownerOf, send } from "../api/client.ts";
import { count } from "../format.ts";
import { say } from "./announce.tsx";
import { DataText } from "./text.tsx";

/** So many letters more at each step: a browser lays out so much text in a moment. */
const STEP = 100_000;

/** `text`: the beginning; `letters`: of the whole, which GET `whole` has; `most`: shown at first; `as`: how it is shown. */
export function LongText({ text, letters = text.length, whole = null, most = 1_500, as: Shown = DataText }: {
  text: string; letters?: number; whole?: string | null; most?: number; as?: ComponentType<{ text: string }>;
}) {
  const [fetched, setFetched] = useState<string | null>(null);
  const [shown, setShown] = useState(most);
  const [isAsking, setAsking] = useState(false);
  const known = fetched ?? text;
  const total = fetched === null ? Math.max(letters, text.length) : fetched.length;
  const more = async () => {
    const next = shown + STEP;
    if (fetched === null && whole !== null && known.length < total) {
      setAsking(true);
      const answer = await wholeText(whole);
      setAsking(false);
      if (answer === null) return;
      setFetched(answer);
    }
    setShown(next);
  };
  const left = total - Math.min(shown, known.length);
  return (
    <>
      <Shown text={known.slice(0, shown)} />
      {left > 0 && (
        <span class="more">
          …{" "}
          <button type="button" class="button quiet small" disabled={isAsking} onClick={() => void more()}>
            {isAsking ? "asking…" : left <= STEP ? `show all ${count(total)} letters` : `show ${count(STEP)} of ${count(left)} more letters`}
          </button>
          {whole !== null && <button type="button" class="button quiet small" onClick={() => void save(whole, fetched)}>save as a file</button>}
        </span>
      )}
    </>
  );
}

async function wholeText(path: string): Promise<string | null> {
  try {
    const response = await send(path, { patienceMs: 120_000 });
    const answer = await response.text();
    if (!response.ok) throw new ApiError(response.status, ownerOf(path), errorMessage(answer) ?? `HTTP ${response.status}`);
    return answer;
  } catch (error) {
    say(error instanceof Error ? error.message : String(error), "bad");
    return null;
  }
}

async function save(path: string, known: string | null): Promise<void> {
  const text = known ?? (await wholeText(path));
  if (text === null) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  link.download = "message.txt";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

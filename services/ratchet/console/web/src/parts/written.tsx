// What the trainer left beside what a job made: its card, or what its process printed. Shown as the text that it is.

import { useState } from "preact/hooks";
import { useResource } from "../api/resource.ts";
import type { ConsoleSchemas } from "../api/types.ts";
import { Loaded } from "../ui/resource.tsx";
import { DataText, Id } from "../ui/text.tsx";

/** Asked for when it is opened. */
export function Written({ job, what }: { job: string; what: "card" | "log" }) {
  const [isOpen, setOpen] = useState(false);
  const written = useResource<ConsoleSchemas["CardOut" | "LogOut"]>(isOpen ? `/v1/jobs/${encodeURIComponent(job)}/${what}` : null);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{what === "log" ? "What the training printed" : "As the trainer wrote it"}</summary>
      {isOpen && <Loaded of={written} what={`the ${what}`}>{({ text, uri, is_whole: isWhole }) => (
        <div class="stack">
          <pre class="quote"><DataText text={text} most={8_000} /></pre>
          <p class="muted small">{isWhole ? "" : `This is its ${what === "log" ? "end" : "beginning"}. `}<Id id={uri} label={`${what}'s address`} shown="copy its address" /></p>
        </div>
      )}</Loaded>}
    </details>
  );
}

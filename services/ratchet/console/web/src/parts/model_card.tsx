// The card that the trainer wrote of a policy: Markdown, shown as the text that it is.

import { useState } from "preact/hooks";
import { useResource } from "../api/resource.ts";
import type { ConsoleSchemas } from "../api/types.ts";
import { Loaded } from "../ui/resource.tsx";
import { DataText, Id } from "../ui/text.tsx";

/** Asked for when it is opened. */
export function ModelCard({ job }: { job: string }) {
  const [isOpen, setOpen] = useState(false);
  const card = useResource<ConsoleSchemas["CardOut"]>(isOpen ? `/v1/jobs/${encodeURIComponent(job)}/card` : null);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As the trainer wrote it</summary>
      {isOpen && <Loaded of={card} what="the card">{(answer) => (
        <div class="stack">
          <pre class="quote"><DataText text={answer.text} most={8_000} /></pre>
          <p class="muted small">{answer.is_whole ? "" : "This is its beginning. "}<Id id={answer.uri} label="card's address" shown="copy its address" /></p>
        </div>
      )}</Loaded>}
    </details>
  );
}

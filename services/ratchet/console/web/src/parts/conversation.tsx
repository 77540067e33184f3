// A conversation: who says what, calls of tools with their arguments, and under each answer the call that made it.

import { useState } from "preact/hooks";
import { answeredBy } from "../format.ts";
import { LongText } from "../ui/long_text.tsx";
import { Icon } from "../ui/icons.tsx";
import { Pill } from "../ui/status.tsx";
import { DataText } from "../ui/text.tsx";
import { Applied } from "./applied.tsx";
import { callFacts, pretty, speaker, type Call, type Message } from "./conversation.ts";
import { Tokens } from "./tokens.tsx";

const FIRST_LETTERS: Readonly<Record<string, number>> = { system: 400, tool: 800 };

/** `whole`: where the whole text of a message is; null: what is given is all that one may see. */
export function Conversation({ messages, calls = [], whole }: {
  messages: readonly Message[]; calls?: readonly Call[]; whole: ((index: number) => string) | null;
}) {
  const byTurn = new Map(calls.map((call) => [call.turn_id, call]));
  return (
    <ol class="talk">
      {messages.map((message) => (
        <Said key={message.index} message={message} by={speaker(message, messages)} whole={whole?.(message.index) ?? null}
          call={message.turn_id === null ? undefined : byTurn.get(message.turn_id)} />
      ))}
    </ol>
  );
}

function Said({ message, by, call, whole }: { message: Message; by: string; call: Call | undefined; whole: string | null }) {
  const isEmpty = message.text === "" && message.tool_calls.length === 0;
  return (
    <li class="said" data-by={message.role} id={`message-${message.index}`}>
      <h3><DataText text={by} /> <span class="muted small">{message.index + 1}</span></h3>
      {message.text !== "" && (
        <div class="words"><LongText text={pretty(message.text)} letters={message.letters} whole={whole} most={FIRST_LETTERS[message.role] ?? 1_500} /></div>
      )}
      {message.tool_calls.map((tool, at) => (
        <div key={at} class="tool">
          <span class="row"><Icon name="tool" /> calls <b class="mono wrap"><DataText text={tool.name} /></b></span>
          <pre><LongText text={pretty(tool.arguments)} letters={tool.letters} whole={tool.letters > tool.arguments.length ? whole : null} /></pre>
        </div>
      ))}
      {isEmpty && <p class="muted">An empty message.</p>}
      {call !== undefined && <CallLine call={call} />}
    </li>
  );
}

/** A call's facts, whether it learns; on demand its tokens, and what the policy's bundle changed of it. */
export function CallLine({ call }: { call: Call }) {
  const [open, setOpen] = useState<"tokens" | "applied" | null>(null);
  const more = (what: "tokens" | "applied", name: string) => (
    <button type="button" class="button quiet small" aria-expanded={open === what} onClick={() => setOpen(open === what ? null : what)}>{open === what ? `Hide ${name}` : name.replace(/^./, (letter) => letter.toUpperCase())}</button>
  );
  return (
    <div class="call">
      <div class="row">
        <span class="id"><DataText text={answeredBy(call.policy, call.model) ?? ""} /></span>
        {call.error !== null
          ? <Pill tone="bad" icon="bad">failed</Pill>
          : call.learns ? <Pill tone="good" icon="good">learns</Pill> : <Pill tone="none" icon="dash">does not learn</Pill>}
        {callFacts(call).map((fact) => <span key={fact} class="muted small nowrap"><DataText text={fact} /></span>)}
        {call.is_changed && more("applied", "what the engine got")}
        {call.has_tokens && more("tokens", "tokens")}
      </div>
      {call.error !== null && <p class="small bad"><DataText text={call.error} most={600} /></p>}
      {call.why_not !== null && <p class="small muted wrap"><DataText text={call.why_not} /> {call.remedy !== null && <b><DataText text={call.remedy} /></b>}</p>}
      {open === "tokens" && <Tokens turn={call.turn_id} />}
      {open === "applied" && <Applied turn={call.turn_id} />}
    </div>
  );
}

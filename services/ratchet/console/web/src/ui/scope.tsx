// Buttons of acts: one whose scope the key lacks stays, does nothing, and says why.

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { session, whyNot } from "../api/session.ts";
import type { Scope } from "../api/types.ts";
import { useStore } from "../store.ts";

export function ActButton({ scope, kind = "", why = null, pressed, onClick, children }: {
  scope: Scope; kind?: string;
  /** Of a button that stands for a choice: whether it is the present one. */
  pressed?: boolean;
  /** Why it cannot be done now, whatever the key allows. */
  why?: string | null; onClick: () => void; children: ComponentChildren;
}) {
  useStore(session);
  const id = useId();
  const reason = whyNot(scope) ?? why;
  if (reason === null) return <button type="button" class={`button ${kind}`} aria-pressed={pressed} onClick={onClick}>{children}</button>;
  // Not `disabled`: keyboards reach it, and hear the reason.
  return (
    <>
      <button type="button" class={`button ${kind}`} aria-disabled="true" aria-pressed={pressed} aria-describedby={id} title={reason}>{children}</button>
      <span class="hidden" id={id}>{reason}</span>
    </>
  );
}

// What stands in the place of an answer that is not there, or not fresh.

import type { ComponentChildren } from "preact";
import { ApiError } from "../api/client.ts";
import type { Resource } from "../api/resource.ts";
import { duration } from "../format.ts";
import { Icon } from "./icons.tsx";
import type { Tone } from "./status.tsx";
import { DataText } from "./text.tsx";
import { useNow } from "./time.tsx";

const WORKS: Readonly<Record<string, string>> = {
  coordinator: "Traffic, rewards and rollouts go on; trainings cannot be seen or started until it answers.",
  deployer: "Gateways go on with the routes that they have; rollouts stand still until it answers.",
  gateway: "Policies cannot be tried from here; everything else works.",
  "workflows service": "Workflows cannot be seen or cancelled; those under way go on when it is back.",
  analyst: "Patterns and plans cannot be seen or decided; a rollout under way goes on.",
  console: "What this page shows already stays; it asks again by itself.",
};

/** Shows the answer, and above it what is wrong with it; before the first answer, that it is asked for. */
export function Loaded<T>({ of, what, children }: { of: Resource<T>; what: string; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {of.error !== null && <Failure error={of.error} at={of.at} what={what} onRetry={of.reload} />}
      {of.data !== null ? children(of.data) : of.error === null && <Loading what={what} />}
    </>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="loading" role="status">
      <span class="hidden">Asking for {what}</span>
      <div class="bones" aria-hidden="true"><span /><span /><span /></div>
    </div>
  );
}

/** A request that failed, in the service's own words, with what still works. */
export function Failure({ error, at = null, what, onRetry }: { error: ApiError; at?: number | null; what: string; onRetry?: () => void }) {
  const now = useNow();
  const tone: Tone = error.isOutage ? "bad" : "warn";
  const title = error.isOutage ? `The ${error.service} cannot answer for ${what}` : `The ${error.service} refuses ${what}`;
  return (
    <Banner tone={tone} title={title} action={onRetry !== undefined && <button type="button" class="button small" onClick={onRetry}>Ask again</button>}>
      <p><DataText text={error.message} most={2000} /></p>
      {error.isOutage && <p class="muted">{WORKS[error.service]}</p>}
      {at !== null && <p class="stale">What follows is {duration(Math.max(1, (now - at) / 1000))} old.</p>}
    </Banner>
  );
}

export function Banner({ tone, title, action, children }: { tone: Tone; title: string; action?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <div class="banner" data-tone={tone} role={tone === "bad" ? "alert" : "status"}>
      <Icon name={tone === "good" ? "good" : tone === "info" ? "info" : "warn"} />
      <div><strong><DataText text={title} /></strong>{children}</div>
      <div>{action}</div>
    </div>
  );
}

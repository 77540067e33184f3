// States in a sign and a word: never by colour alone.

import type { ComponentChildren } from "preact";
import { words } from "../format.ts";
import { Icon, type IconName } from "./icons.tsx";
import { DataText } from "./text.tsx";

export type Tone = "good" | "warn" | "bad" | "info" | "accent" | "none";

interface Look {
  readonly tone: Tone;
  readonly icon: IconName;
}

const GOOD: Look = { tone: "good", icon: "good" };
const BAD: Look = { tone: "bad", icon: "bad" };
const WARN: Look = { tone: "warn", icon: "warn" };
const RUN: Look = { tone: "accent", icon: "run" };
const WAIT: Look = { tone: "info", icon: "wait" };
const PAST: Look = { tone: "none", icon: "dash" };

/** How the states of rollouts, gates, policies, jobs and services look. One that is not here looks neutral. */
const LOOKS: Readonly<Record<string, Look>> = {
  // Rollouts and their decisions
  gating: WAIT, awaiting_approval: WARN, running: RUN, paused: WARN, held: WARN, suspended: BAD, soaking: RUN, promoted: GOOD,
  rolled_back: BAD, refused: BAD, aborted: PAST, withdrawn: BAD, superseded: PAST, reverted: BAD,
  promote: GOOD, roll_back: BAD, hold: WARN, advance: RUN, start: RUN, pause: WARN, resume: RUN, abort: PAST, suspend: BAD, withdraw: BAD, revert: BAD, refuse: BAD,
  // Gates
  passed: GOOD, failed: BAD, needs_approval: WARN, waived: WARN, not_run: PAST,
  // Policies
  registered: WAIT, canary: { tone: "accent", icon: "canary" }, stable: GOOD, archived: PAST, production: GOOD, staging: WAIT,
  // Jobs
  queued: WAIT, dispatched: WAIT, completed: GOOD, cancelled: PAST, pending: WAIT, training: RUN,
  // Services
  ready: GOOD, "not ready": WARN, away: BAD, unknown: PAST,
  // Receivers of alerts
  failing: BAD, quiet: WAIT,
  // Workflows and their sub-tasks
  planning: WAIT, waiting: WAIT, succeeded: GOOD, skipped: PAST,
  // Patterns and plans
  draft: WARN, approved: WAIT, executing: RUN, validated: GOOD, rejected: PAST, closed: GOOD, dismissed: PAST,
  // Trajectories
  open: RUN, ended: PAST, success: GOOD, partial: WARN, failure: BAD,
};

export function Status({ state, word, plain = false }: { state: string; word?: string; plain?: boolean }) {
  const look = LOOKS[state] ?? PAST;
  return <Pill tone={look.tone} icon={look.icon} plain={plain}><DataText text={word ?? words(state)} /></Pill>;
}

export function Pill({ tone, icon, plain = false, children }: { tone: Tone; icon?: IconName; plain?: boolean; children: ComponentChildren }) {
  return (
    <span class={plain ? "status plain" : "status"} data-tone={tone}>
      {icon !== undefined && <Icon name={icon} size={12} />}
      {children}
    </span>
  );
}

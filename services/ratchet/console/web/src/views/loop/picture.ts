// What each station of the living picture says, out of the loop's figures. Nothing here touches the page.

import type { Loop } from "../../api/types.ts";
import { count, measure, plural, share, words } from "../../format.ts";
import { href } from "../../route.ts";
import type { IconName } from "../../ui/icons.tsx";
import type { Tone } from "../../ui/status.tsx";

export interface Station {
  readonly name: string;
  readonly icon: IconName;
  readonly figure: string;
  readonly unit: string;
  readonly detail: string;
  readonly tone: Tone;
  /** What is wrong, or that nothing is, in a word. */
  readonly state: string;
  /** Messages a minute on the way to the next station: what moves on the picture. */
  readonly flow: number;
  readonly link: string | null;
}

const RECENT_MINUTES = 5;
const WAITING = new Set(["awaiting_approval", "gating"]);
const UNDER_WAY = new Set(["dispatched", "running"]);

interface Recent {
  readonly calls: number;
  readonly failed: number;
  readonly trajectories: number;
  readonly rewards: number;
  readonly mean: number | null;
}

/** The stations in the order of the loop; the last one leads back to the gateway. */
export function stations(loop: Loop): readonly Station[] {
  const recent = lately(loop);
  return [agents(loop, recent), gateway(loop, recent), stream(loop, recent), rewards(loop, recent), jobs(loop), gate(loop), canary(loop), routes(loop)];
}

/** A minute's average over the last five minutes and the one that runs. */
export function lately({ at, minutes }: Loop): Recent {
  const taken = minutes.slice(-RECENT_MINUTES - 1);
  const of = (pick: (minute: Loop["minutes"][number]) => number) => taken.reduce((sum, minute) => sum + pick(minute), 0);
  const rewarded = taken.filter((minute) => minute.mean_reward !== null && minute.rewards > 0);
  const weight = rewarded.reduce((sum, minute) => sum + minute.rewards, 0);
  const mean = weight === 0 ? null : rewarded.reduce((sum, minute) => sum + (minute.mean_reward ?? 0) * minute.rewards, 0) / weight;
  const per = Math.max(1, (Date.parse(at) - Date.parse(taken[0]?.at ?? at)) / 60_000);
  return {
    calls: of((minute) => minute.calls) / per,
    failed: of((minute) => minute.failed_calls) / per,
    trajectories: of((minute) => minute.trajectories) / per,
    rewards: of((minute) => minute.rewards) / per,
    mean,
  };
}

function agents(loop: Loop, recent: Recent): Station {
  return {
    name: "Agents", icon: "agent", flow: recent.calls, link: href("trajectories"),
    figure: loop.open_trajectories === null ? "–" : count(loop.open_trajectories), unit: "open trajectories",
    detail: `${rate(recent.trajectories)} end per minute`, tone: "none", state: recent.calls > 0 ? "working" : "quiet",
  };
}

function gateway(loop: Loop, recent: Recent): Station {
  const failing = recent.calls > 0 && recent.failed / recent.calls > 0.05;
  const down = ailing(loop, "gateway");
  return {
    name: "Gateway", icon: "gateway", flow: recent.calls, link: href({ focus: "services" }),
    figure: rate(recent.calls), unit: "calls per minute",
    detail: recent.calls > 0 ? `${share(recent.failed / recent.calls)} fail` : "no calls",
    tone: down !== null ? "bad" : failing ? "warn" : "good", state: down ?? (failing ? "calls fail" : "ready"),
  };
}

function stream(loop: Loop, recent: Recent): Station {
  const lag = loop.streams.flatMap((one) => one.consumers).reduce((sum, consumer) => sum + consumer.lag, 0);
  const lost = loop.ledger.reduce((sum, row) => sum + row.lost + row.missing + row.absent, 0);
  const unread = loop.unread["nats"] !== undefined;
  const late = loop.attention.some((one) => one.kind === "lag");
  return {
    name: "Stream", icon: "stream", flow: recent.trajectories, link: href({ focus: "streams" }),
    figure: unread ? "–" : count(lag), unit: "messages behind",
    detail: lost === 0 ? "the ledger balances" : `${plural(lost, "message")} unaccounted for`,
    tone: lost > 0 ? "bad" : unread || late ? "warn" : "good", state: lost > 0 ? "loss" : unread ? "cannot be read" : late ? "late" : "ready",
  };
}

function rewards(loop: Loop, recent: Recent): Station {
  const down = ailing(loop, "reward");
  return {
    name: "Rewards", icon: "reward", flow: recent.rewards, link: href({ focus: "hour" }),
    figure: measure(recent.mean), unit: "mean reward",
    detail: `${rate(recent.rewards)} rewards per minute`, tone: down !== null ? "bad" : "good", state: down ?? "ready",
  };
}

function jobs(loop: Loop): Station {
  const active = [...UNDER_WAY].reduce((sum, state) => sum + (loop.jobs[state] ?? 0), 0);
  const queued = loop.jobs["queued"] ?? 0;
  const down = ailing(loop, "coordinator");
  return {
    name: "Jobs", icon: "training", flow: active, link: href("training"),
    figure: count(active), unit: active === 1 ? "training runs" : "trainings run",
    detail: `${count(queued)} wait, ${count(loop.jobs["completed"] ?? 0)} completed`,
    tone: down !== null ? "bad" : active > 0 ? "accent" : "none", state: down ?? (active > 0 ? "learning" : "idle"),
  };
}

function gate(loop: Loop): Station {
  const waiting = loop.roles.filter((role) => WAITING.has(role.rollout ?? ""));
  const asked = waiting.filter((role) => role.rollout === "awaiting_approval");
  return {
    name: "Gate", icon: "gate", flow: waiting.length, link: href("rollouts"),
    figure: count(waiting.length), unit: waiting.length === 1 ? "policy is examined" : "policies are examined",
    detail: asked.length > 0 ? `${plural(asked.length, "approval")} asked for` : "no approval is asked for",
    tone: asked.length > 0 ? "warn" : waiting.length > 0 ? "accent" : "none", state: asked.length > 0 ? "waits for a person" : waiting.length > 0 ? "examining" : "idle",
  };
}

function canary(loop: Loop): Station {
  const canaries = loop.roles.filter((role) => role.canary !== null);
  const suspended = loop.roles.filter((role) => role.rollout === "suspended");
  const stuck = [...suspended, ...loop.roles.filter((role) => role.rollout === "held" || role.rollout === "paused")];
  return {
    name: "Canary", icon: "canary", flow: canaries.reduce((sum, role) => sum + (role.weight ?? 0), 0), link: href("rollouts"),
    figure: count(canaries.length), unit: canaries.length === 1 ? "canary" : "canaries",
    detail: canaries.length === 0 ? "all traffic goes to stable" : canaries.map((role) => `${role.role} ${share(role.weight)}`).join(", "),
    tone: suspended.length > 0 ? "bad" : stuck.length > 0 ? "warn" : canaries.length > 0 ? "accent" : "none",
    state: stuck.length > 0 ? words(stuck[0]?.rollout ?? "held") : canaries.length > 0 ? "under test" : "idle",
  };
}

function routes(loop: Loop): Station {
  const served = loop.roles.filter((role) => role.stable !== null);
  const down = ailing(loop, "deployer");
  return {
    name: "Routes", icon: "route", flow: served.length > 0 ? 1 : 0, link: href("policies"),
    figure: count(served.length), unit: served.length === 1 ? "role is served" : "roles are served",
    detail: served.length === 0 ? "the upstream model answers" : served.map((role) => role.role).join(", "),
    tone: down !== null ? "bad" : "good", state: down ?? "ready",
  };
}

/** How a service that is part of a station is unwell; null when it is well or not known. */
function ailing(loop: Loop, part: string): string | null {
  const state = loop.services.find((service) => service.name.includes(part))?.state;
  return state === "away" || state === "not ready" ? state : null;
}

function rate(perMinute: number): string {
  return perMinute >= 10 || perMinute === 0 ? count(Math.round(perMinute)) : measure(perMinute, 2);
}

// One act on a rollout: its reason, what it would do, and then doing it.

import { useState } from "preact/hooks";
import { ApiError, post } from "../../api/client.ts";
import { session } from "../../api/session.ts";
import type { Rollout, RolePolicies } from "../../api/types.ts";
import { useResource } from "../../api/resource.ts";
import { say } from "../../ui/announce.tsx";
import { Dialog } from "../../ui/dialog.tsx";
import { Select, TextArea, Tick } from "../../ui/form.tsx";
import { Banner } from "../../ui/resource.tsx";
import { DataText, Id, PolicyName } from "../../ui/text.tsx";
import { ACTS, changes, type Act } from "./evidence.ts";
import { paths } from "./paths.ts";

const STRATEGIES: readonly (readonly [string, string])[] = [
  ["", "as the installation says"], ["canary", "canary: stage by stage"], ["blue_green", "blue-green: all at once, then soak"],
  ["auto", "auto"], ["immediate", "immediate: all at once, unwatched (needs the override)"],
];

export interface ActProps {
  readonly role: string;
  readonly act: Act;
  readonly rollout: Rollout | null;
  /** Of a start: the version that is chosen at first. */
  readonly version?: number | null;
  readonly onClose: () => void;
  readonly onDone: (rollout: Rollout) => void;
}

export function ActDialog({ role, act, rollout, version = null, onClose, onDone }: ActProps) {
  const about = ACTS[act];
  const [reason, setReason] = useState("");
  const [override, setOverride] = useState(false);
  const [chosen, setChosen] = useState(version === null ? "" : String(version));
  const [strategy, setStrategy] = useState("");
  const [isAsking, setAsking] = useState(false);
  const [preview, setPreview] = useState<{ body: string; rollout: Rollout } | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);

  // All that the preview depends on: when any of it changes, the rollout too, it is shown again.
  const body = { actor: session.value?.name ?? "console", reason: reason.trim(), ...membersOf(act, rollout, chosen, strategy), ...(about.override !== null && override ? { override } : {}) };
  const shown = preview !== null && preview.body === JSON.stringify(body) ? preview.rollout : null;

  const send = async (isDry: boolean) => {
    const missing = whatIsMissing(act, body.reason, chosen);
    setWrong(missing);
    if (missing !== null) return;
    setAsking(true);
    try {
      const answer = await post<Rollout>(paths.act(role, act), { ...body, dry_run: isDry });
      if (isDry) return setPreview({ body: JSON.stringify(body), rollout: answer });
      say(`${about.done}: ${role}`);
      onDone(answer);
    } catch (error) {
      setPreview(null);
      setWrong(error instanceof ApiError ? error.message : String(error));
    } finally {
      setAsking(false);
    }
  };

  return (
    <Dialog title={`${about.name}: ${role}`} onClose={onClose}>
      <p>{about.what}</p>
      {act !== "start" && rollout !== null && <p class="muted small">The newest rollout: <PolicyName name={rollout.candidate.name} />, <Id id={rollout.rollout_id} label="id of the rollout" /></p>}
      {act === "start" && <StartFields role={role} chosen={chosen} onChosen={setChosen} strategy={strategy} onStrategy={setStrategy} />}
      <TextArea label="Reason" required maxLength={10_000} value={reason} onValue={setReason} hint={`It stands in the audit log beside your name, ${body.actor}.`} />
      {about.override !== null && <Tick checked={override} onChecked={setOverride}>{about.override}</Tick>}
      {wrong !== null && <Banner tone="bad" title="Not done"><p><DataText text={wrong} /></p></Banner>}
      {shown !== null && <Preview before={rollout} after={shown} />}
      <div class="buttons">
        <button type="button" class="button" onClick={onClose}>Cancel</button>
        {shown === null
          ? <button type="button" class="button main" disabled={isAsking} onClick={() => void send(true)}>{isAsking ? "Asking…" : "Show what it would do"}</button>
          : <button type="button" class={about.isDangerous ? "button danger" : "button main"} disabled={isAsking} onClick={() => void send(false)}>{isAsking ? "Asking…" : `${about.name} now`}</button>}
      </div>
    </Dialog>
  );
}

function Preview({ before, after }: { before: Rollout | null; after: Rollout }) {
  const lines = changes(before, after);
  return (
    <div role="status">
      <Banner tone="info" title="It would do this">
        {lines.length === 0 ? <p>Nothing visible changes; the decision is recorded.</p> : <ul>{lines.map((line) => <li key={line}><DataText text={line} /></li>)}</ul>}
      </Banner>
    </div>
  );
}

function StartFields({ role, chosen, onChosen, strategy, onStrategy }: {
  role: string; chosen: string; onChosen: (version: string) => void; strategy: string; onStrategy: (strategy: string) => void;
}) {
  const policies = useResource<RolePolicies>(paths.policies(role));
  const stable = policies.data?.route?.stable?.version;
  const versions = (policies.data?.policies ?? []).filter((policy) => policy.version !== stable).sort((a, b) => b.version - a.version);
  return (
    <>
      <Select label="Version" value={chosen} onValue={onChosen} hint={policies.error?.message}
        options={[["", "choose one"], ...versions.map((policy) => [String(policy.version), `${policy.name} (${policy.stage})`] as const)]} />
      <Select label="Strategy" value={strategy} onValue={onStrategy} options={STRATEGIES} />
    </>
  );
}

/** Which rollout an act is about, or what a start begins. */
function membersOf(act: Act, rollout: Rollout | null, version: string, strategy: string): { rollout_id?: string; version?: number; strategy?: string } {
  if (act !== "start") return rollout === null ? {} : { rollout_id: rollout.rollout_id };
  return strategy === "" ? { version: Number(version) } : { version: Number(version), strategy };
}

function whatIsMissing(act: Act, reason: string, version: string): string | null {
  if (act === "start" && version === "") return "Choose a version first.";
  return reason === "" ? "Give a reason first: it is part of the record." : null;
}

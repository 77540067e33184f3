// Fields by which trajectories are looked for and counted.

import { InstantField, Select, TextField } from "../ui/form.tsx";

interface Filters {
  readonly outcome: string;
  readonly arm: string;
  readonly policy: string;
  readonly agent: string;
  readonly domain: string;
  readonly model: string;
  readonly profile: string;
  readonly source: string;
  readonly since: string;
  readonly until: string;
}

type Change = (name: keyof Filters) => (value: string) => void;

export function EndFields({ draft, choose }: { draft: Filters; choose: Change }) {
  return (
    <>
      <Select label="Outcome" value={draft.outcome} onValue={choose("outcome")} options={[["", "any"], "success", "partial", "failure", ["none", "none reported"]]} />
      <Select label="Arm" value={draft.arm} onValue={choose("arm")} options={[["", "any"], "stable", "canary", "pinned", "mixed"]} />
    </>
  );
}

export function OriginFields({ draft, change }: { draft: Filters; change: Change }) {
  return (
    <>
      <TextField label="Agent" value={draft.agent} onValue={change("agent")} />
      <TextField label="Domain" value={draft.domain} onValue={change("domain")} />
      <TextField label="Model" value={draft.model} onValue={change("model")} />
      <TextField label="Policy" placeholder="7 or support@7" value={draft.policy} onValue={change("policy")} />
      <TextField label="Profile" value={draft.profile} onValue={change("profile")} />
      <TextField label="Source" placeholder="client, assembled, import:…" value={draft.source} onValue={change("source")} />
      <div class="wide"><InstantField label="From" value={draft.since} onValue={change("since")} /></div>
      <div class="wide"><InstantField label="Until" value={draft.until} onValue={change("until")} /></div>
    </>
  );
}

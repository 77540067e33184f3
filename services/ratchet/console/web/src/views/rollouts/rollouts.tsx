// Rollouts by role; below a role, its newest rollout or an earlier one.

import { useResource } from "../../api/resource.ts";
import type { DeployerSchemas, Rollout } from "../../api/types.ts";
import { duration, share } from "../../format.ts";
import { href, type Route } from "../../route.ts";
import { Empty, Page, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { Pill, Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, PolicyName } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { rough } from "./evidence.ts";
import { paths } from "./paths.ts";
import { PastRolloutView } from "./past.tsx";
import { BundleLink } from "./record.tsx";
import { RolloutView } from "./rollout.tsx";

export function RolloutsView({ route }: { route: Route }) {
  const role = route.parts[1];
  const rollout = route.params["rollout"];
  if (role === undefined) return <AllRollouts />;
  return rollout === undefined ? <RolloutView key={role} role={role} /> : <PastRolloutView key={rollout} role={role} rollout={rollout} />;
}

function AllRollouts() {
  const all = useResource<DeployerSchemas["RolloutsOut"]>(paths.all, { on: (hint) => hint.kind === "rollout", everyMs: 15_000 });
  return (
    <Page title="Rollouts" lead="A new policy gets a share of real traffic beside the one that serves, and takes its place when the evidence suffices.">
      <Loaded of={all} what="the rollouts">
        {({ rollouts }) => (
          <Panel title="The newest of each role" flush>
            {rollouts.length === 0 ? <Empty>No rollout yet: the first one begins when a training makes a policy.</Empty> : <RolloutTable rollouts={rollouts} />}
          </Panel>
        )}
      </Loaded>
    </Page>
  );
}

function RolloutTable({ rollouts }: { rollouts: readonly Rollout[] }) {
  return (
    <Table caption="The newest rollout of each role" rows={rollouts} rowKey={(rollout) => rollout.role} columns={[
      { name: "Role", show: (rollout) => <a href={href("rollouts", rollout.role)}><DataText text={rollout.role} /></a> },
      { name: "State", show: (rollout) => <span class="row"><Status state={rollout.state} />{rollout.fault != null && <Pill tone="bad" icon="warn">fault</Pill>}{rollout.late != null && <Pill tone="warn" icon="wait">late</Pill>}</span> },
      { name: "Candidate", show: (rollout) => <><PolicyName name={rollout.candidate.name} /><span class="muted small block">{rollout.stable === null ? "the first policy" : <>beside <PolicyName name={rollout.stable.name} /></>}</span>{rollout.candidate.bundle === true && <span class="small block"><BundleLink rollout={rollout} /></span>}</> },
      { name: "Traffic", isNumber: true, show: (rollout) => share(rollout.weight) },
      { name: "Waits for", show: (rollout) => <Waits of={rollout} /> },
      { name: "Expected", show: (rollout) => rollout.forecast === null ? <span class="muted">–</span> : duration(rough(rollout.forecast.expected_days * 86_400)) },
      { name: "Began", show: (rollout) => <Ago at={rollout.created_at} /> },
    ]} />
  );
}

/** What its stage lacks, or the person who decides. */
function Waits({ of }: { of: Rollout }) {
  if (of.state === "awaiting_approval") return <>a person's approval</>;
  if (of.state === "held" || of.state === "suspended") return <>a person's decision</>;
  if (of.waiting_for.length === 0) return <span class="muted">–</span>;
  return <ul class="waits">{of.waiting_for.map((one) => <li key={one}><DataText text={one} most={120} /></li>)}</ul>;
}

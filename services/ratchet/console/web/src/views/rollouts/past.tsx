// An earlier rollout: its evidence over time and its decisions.

import { useResource } from "../../api/resource.ts";
import type { RolloutHistory } from "../../api/types.ts";
import { href } from "../../route.ts";
import { Page } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { DataText } from "../../ui/text.tsx";
import { Differences, Evidence } from "./comparison.tsx";
import { paths } from "./paths.ts";
import { Decisions, Failures } from "./record.tsx";

export function PastRolloutView({ role, rollout }: { role: string; rollout: string }) {
  const history = useResource<RolloutHistory>(paths.history(role, rollout));
  const to = history.data?.to_version;
  const policy = to !== undefined && <a class="button" href={href("policies", role, to, { with: history.data?.from_version })}>Its policy</a>;
  return (
    <Page title={to === undefined ? `Earlier rollout of ${role}` : `Rollout of ${role}, version ${to}`} actions={policy}>
      <nav aria-label="Where you are" class="small"><a href={href("rollouts")}>Rollouts</a> › <a href={href("rollouts", role)}><DataText text={role} /></a> › version {to ?? "…"}</nav>
      <Loaded of={history} what="that rollout">
        {({ decisions }) => (
          <>
            <Evidence decisions={decisions} between={[]} thresholds={{}} />
            <Differences differences={decisions.findLast((one) => Object.keys(one.differences).length > 0)?.differences ?? {}} />
            <Failures role={role} rollout={rollout} />
            <Decisions decisions={decisions} />
          </>
        )}
      </Loaded>
    </Page>
  );
}

// The curves of a job, each with the range where it should be, and the sentence about what lies outside.

import type { ComponentChildren } from "preact";
import { useResource, type Resource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { LineChart, type Series } from "../../charts/line.tsx";
import { hasEnded, type Job } from "../../parts/jobs.ts";
import { Panel } from "../../ui/panel.tsx";
import { Pill } from "../../ui/status.tsx";
import { DataText } from "../../ui/text.tsx";
import { curveName, isGood, rangeText, type Curve, type Range } from "./curves.ts";

type Curves = ConsoleSchemas["CurvesOut"];

/** The curves of a job, again and again until it has ended; null: of none. */
export function useCurves(id: string | null, job: Job | null): Resource<Curves> {
  const options = { on: (hint: { subject: string | null }) => hint.subject === id };
  return useResource(id === null ? null : `/v1/jobs/${encodeURIComponent(id)}/curves`, job !== null && hasEnded(job) ? options : { ...options, everyMs: 3_000 });
}

export function CurvePanel({ curve }: { curve: Curve }) {
  const good = isGood(curve);
  const badge = good === null ? undefined : good ? <Pill tone="good" icon="good">as it should be</Pill> : <Pill tone="warn" icon="warn">out of range</Pill>;
  const name = curveName(curve);
  return <CurveFrame name={name} meaning={curve.meaning} good={curve.good} badge={badge} series={[{ name, points: curve.points }]} />;
}

export function CurveFrame({ name, meaning, good, badge, series }: {
  name: string; meaning: string | null; good: Range | null; badge?: ComponentChildren; series: readonly Series[];
}) {
  return (
    <Panel title={name} actions={badge}>
      {meaning !== null && <p class="muted small"><DataText text={meaning} /></p>}
      <LineChart title={name} series={series} x="linear" xName="Train step" height={168} {...(good === null ? {} : { good })} />
      {good !== null && (
        <p class="small">
          {rangeText(good) !== null && <><span class="swatch" aria-hidden="true" /> Should be <b>{rangeText(good)}</b>. </>}
          <span class="muted"><DataText text={good.meaning} /></span>
        </p>
      )}
    </Panel>
  );
}

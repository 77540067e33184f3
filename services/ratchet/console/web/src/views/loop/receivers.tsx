// Who gets alerts: every receiver with its state, and what was sent to it.

import { useResource } from "../../api/resource.ts";
import type { Alerts, Receiver } from "../../api/types.ts";
import { count, plural } from "../../format.ts";
import { Empty, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";

export function Receivers() {
  const alerts = useResource<Alerts>("/v1/alerts", { everyMs: 10_000 });
  return (
    <Panel title="Who gets alerts" id="receivers" flush>
      <Loaded of={alerts} what="the receivers of alerts">{(answer) => <Known alerts={answer} />}</Loaded>
    </Panel>
  );
}

function Known({ alerts }: { alerts: Alerts }) {
  if (alerts.receivers.length === 0) return <Empty>No receiver yet: alerts stay on these pages. The guide "Alerts that reach people" shows how to set one.</Empty>;
  return (
    <>
      <Table caption="Receivers of alerts" rows={alerts.receivers} rowKey={(one) => one.name} columns={[
        { name: "Receiver", show: (one) => <><DataText text={one.name} /> <span class="muted small">{one.kind}</span></> },
        { name: "Gets", show: (one) => <>{one.severity}{one.severity !== "critical" && " and worse"}{one.roles.length > 0 && <> of {one.roles.join(", ")}</>}</> },
        { name: "State", show: (one) => <State receiver={one} /> },
        { name: "Knows of", isNumber: true, show: (one) => count(alerts.alerts.filter((alert) => alert.sent_to.includes(one.name)).length) },
      ]} />
      <details class="folded">
        <summary>{plural(alerts.receivers.reduce((sum, one) => sum + one.sent.length, 0), "notification")} sent</summary>
        <Table caption="What was sent to whom" rows={sentOf(alerts)} rowKey={({ receiver, sent }) => `${receiver} ${sent.at} ${sent.title}`} columns={[
          { name: "Sent", show: ({ sent }) => <Ago at={sent.at} /> },
          { name: "To", show: ({ receiver }) => <DataText text={receiver} /> },
          { name: "Notification", show: ({ sent }) => <DataText text={sent.title} most={200} /> },
          { name: "Attempts", isNumber: true, show: ({ sent }) => <>{count(sent.attempts)}{sent.error !== null && <> <span class="muted">given up: <DataText text={sent.error} most={200} /></span></>}</> },
        ]} />
      </details>
    </>
  );
}

function State({ receiver }: { receiver: Receiver }) {
  return (
    <div class="stack wrap">
      <Status state={receiver.state} />
      {receiver.reason !== null && <span><DataText text={receiver.reason} most={300} /></span>}
    </div>
  );
}

function sentOf(alerts: Alerts): { receiver: string; sent: Receiver["sent"][number] }[] {
  const all = alerts.receivers.flatMap((one) => one.sent.map((sent) => ({ receiver: one.name, sent })));
  return all.sort((one, other) => other.sent.at.localeCompare(one.sent.at)).slice(0, 20);
}

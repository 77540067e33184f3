// How far the raters of a role agree, and who disagrees with the others more than chance makes.

import { useResource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, measure, plural, share } from "../../format.ts";
import { Empty, Figure, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { Pill } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText } from "../../ui/text.tsx";
import { annotationPath } from "./annotation.tsx";
import { alphaInWords } from "./agreement.ts";

type Answer = ConsoleSchemas["AgreementOut"];
type Rater = ConsoleSchemas["RaterOut"];

export function Agreement({ role }: { role: string }) {
  const agreement = useResource<Answer>(annotationPath("agreement", role));
  return <Loaded of={agreement} what="the raters">{(answer) => <Shown answer={answer} />}</Loaded>;
}

function Shown({ answer }: { answer: Answer }) {
  const word = alphaInWords(answer.alpha);
  return (
    <>
      <Panel title={`Agreement of the raters of ${answer.role}`}>
        <div class="figures">
          <Figure name="Krippendorff's alpha" value={measure(answer.alpha)}><Pill tone={word.tone} icon={word.tone === "good" ? "good" : word.tone === "none" ? "dash" : "warn"}>{word.text}</Pill></Figure>
          <Figure name="questions that several judged" value={count(answer.questions)} />
          <Figure name="raters" value={count(answer.raters.length)} />
        </div>
        <p class="muted">1: they always agree. 0: as often as by chance. Below .67 what they prefer is too uncertain to learn much from: agree on what makes an answer good first.</p>
      </Panel>
      <Panel title="Each rater against the majority of the others" flush>
        {answer.raters.length === 0
          ? <Empty>No two people have judged the same two answers yet.</Empty>
          : <Table caption="Raters" rows={answer.raters} rowKey={(one) => one.rater} columns={[
            { name: "Rater", show: (one) => <DataText text={one.rater} most={80} /> },
            { name: "Judged with others", isNumber: true, show: (one) => plural(one.shared, "question") },
            { name: "Disagreed", isNumber: true, show: (one) => `${count(one.disagreed)} (${share(one.shared === 0 ? null : one.disagreed / one.shared)})` },
            { name: "95 % interval", isNumber: true, show: interval },
            { name: "In trainings", show: (one) => <Pill tone={one.standing === "quarantined" || one.standing === "banned" ? "warn" : "none"} icon={one.standing === "quarantined" || one.standing === "banned" ? "warn" : "dash"}>{one.standing}</Pill> },
            { name: "Disagrees", show: (one) => one.is_outlier ? <Pill tone="warn" icon="warn">more than chance makes</Pill> : <Pill tone="good" icon="good" plain>no more than chance</Pill> },
          ]} />}
      </Panel>
    </>
  );
}

function interval(one: Rater): string {
  return `${share(one.low)} to ${share(one.high)}`;
}

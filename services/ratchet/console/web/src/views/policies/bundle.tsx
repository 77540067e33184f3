// What a bundle changes of calls, part by part, and how it differs from another version of its role.

import { useResource } from "../../api/resource.ts";
import type { DeployerSchemas, RolePolicies } from "../../api/types.ts";
import { compared, partsOf, placeholders, type Bundle, type Change, type Part } from "../../parts/bundle.ts";
import { SideBySide } from "../../parts/diff.tsx";
import { href } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Select } from "../../ui/form.tsx";
import { LongText } from "../../ui/long_text.tsx";
import { Empty, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { DataText } from "../../ui/text.tsx";
import { paths as rollouts } from "../rollouts/paths.ts";
import { beside } from "./models.ts";
import { paths } from "./paths.ts";

const AS_SENT = "as agents send it";
const FIRST_LETTERS = 4_000;

type Named = DeployerSchemas["BundleOut"];

/** `other`: the version that it is compared with, of the address; by default what serves the role. */
export function BundlePanels({ role, version, other }: { role: string; version: number; other: string | undefined }) {
  const named = useResource<Named>(paths.bundle(role, version));
  const all = useResource<RolePolicies>(rollouts.policies(role));
  return (
    <Loaded of={named} what="what it changes of calls">
      {({ bundle }) => (
        <>
          <Panel title="What it changes of calls"><Parts bundle={bundle} /></Panel>
          <Loaded of={all} what={`the versions of ${role}`}>{(policies) => <Comparison policies={policies} version={version} bundle={bundle} other={other} />}</Loaded>
        </>
      )}
    </Loaded>
  );
}

/** Each part with what the model reads there. */
export function Parts({ bundle }: { bundle: Bundle }) {
  const parts = partsOf(bundle);
  if (parts.length === 1 && bundle.model == null && bundle.planner == null) return <Empty>Nothing: calls go on as agents send them, to what answers for the role without a policy.</Empty>;
  return (
    <div class="stack gap">
      {parts.map((part) => (
        <section key={part.name} class="stack">
          <div class="row"><h3><DataText text={part.name} most={100} /></h3> <span class="muted small wrap"><DataText text={part.words} most={400} /></span></div>
          {part.text !== null && <pre class="quote"><LongText text={part.text} most={FIRST_LETTERS} as={part.name === "instructions" ? Template : DataText} /></pre>}
        </section>
      ))}
    </div>
  );
}

/** Instructions, their placeholders marked. */
function Template({ text, most }: { text: string; most?: number }) {
  if (most !== undefined && text.length > most) return <DataText text={text} most={most} />;
  return <>{placeholders(text).map((piece, at) => (at % 2 === 0 ? <DataText key={at} text={piece} /> : <span key={at} class="placeholder"><DataText text={piece} /></span>))}</>;
}

function Comparison({ policies, version, bundle, other }: { policies: RolePolicies; version: number; bundle: Bundle; other: string | undefined }) {
  const { role, route } = policies;
  const stable = route?.stable?.version ?? null;
  const versions = policies.policies.map((policy) => policy.version);
  const chosen = versions.find((each) => String(each) === other && each !== version) ?? beside(version, versions, stable);
  const named = useResource<Named>(chosen === null ? null : paths.bundle(role, chosen));
  if (chosen === null) return null;
  const options = policies.policies.filter((policy) => policy.version !== version).reverse()
    .map((policy) => [String(policy.version), `version ${policy.version}${policy.version === 0 ? `, ${AS_SENT}` : ""} (${policy.kind}, ${policy.version === stable ? "stable" : policy.stage})`] as const);
  return (
    <Panel title="Compared with another version" id="comparison">
      <div class="fields"><div class="wide"><Select label="Compared with" value={String(chosen)} options={options} onValue={(value) => navigate(href("policies", role, version, { with: value }), { replace: true })} /></div></div>
      <Loaded of={named} what={`what version ${chosen} changes`}>{(answer) => <Changes before={answer.bundle} after={bundle} names={[`version ${chosen}`, `version ${version}, this one`]} />}</Loaded>
    </Panel>
  );
}

function Changes({ before, after, names }: { before: Bundle; after: Bundle; names: readonly [string, string] }) {
  const { changes, same } = compared(before, after);
  return (
    <div class="stack gap">
      {changes.length === 0 && <Empty>Both change the same of calls.</Empty>}
      {changes.map((change) => <Changed key={change.name} change={change} names={names} />)}
      {changes.length > 0 && same.length > 0 && <p class="muted small">The same in both: <DataText text={same.join(", ")} most={400} />.</p>}
    </div>
  );
}

function Changed({ change: { name, before, after }, names }: { change: Change; names: readonly [string, string] }) {
  const says = (part: Part | null) => part?.words ?? AS_SENT;
  const hasTexts = before?.text !== after?.text && (before?.text ?? after?.text ?? null) !== null;
  return (
    <section class="stack">
      <h3><DataText text={name} most={100} /></h3>
      {says(before) !== says(after) && <p class="small wrap"><DataText text={says(before)} most={400} /> → <b><DataText text={says(after)} most={400} /></b></p>}
      {hasTexts && <SideBySide what={name} names={names} before={before?.text ?? null} after={after?.text ?? null} as={name === "instructions" ? Template : DataText} />}
    </section>
  );
}

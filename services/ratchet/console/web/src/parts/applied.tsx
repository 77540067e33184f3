// What the engine got of a call beside what its agent sent, where the policy's bundle changed it.

import { useResource } from "../api/resource.ts";
import type { ConsoleSchemas } from "../api/types.ts";
import { href } from "../route.ts";
import { Loaded } from "../ui/resource.tsx";
import { DataText } from "../ui/text.tsx";
import { SideBySide } from "./diff.tsx";

export function Applied({ turn }: { turn: string }) {
  const applied = useResource<ConsoleSchemas["AppliedOut"]>(`/v1/calls/${encodeURIComponent(turn)}/applied`);
  return (
    <div class="stack">
      <Loaded of={applied} what="what the engine got">{({ role, version, parts, is_cut: isCut }) => (
        <>
          <p class="small muted">The rest went on as it was sent. <a href={href("policies", role, version)}>The policy</a> made these changes.{isCut && " Longer texts end after 400,000 letters."}</p>
          {parts.map((part) => (
            <section key={part.name} class="stack">
              <h4><DataText text={part.name} /></h4>
              <SideBySide what={part.name} names={["the agent sent", "the engine got"]} before={part.sent} after={part.got} />
            </section>
          ))}
        </>
      )}</Loaded>
    </div>
  );
}

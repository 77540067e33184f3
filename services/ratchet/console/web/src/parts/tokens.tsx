// The tokens of one answer, in pages: shaded and underlined by how likely they were, and marked by what learns.

import { useState } from "preact/hooks";
import { useResource } from "../api/resource.ts";
import type { ConsoleSchemas } from "../api/types.ts";
import { count, measure } from "../format.ts";
import { Banner, Loaded } from "../ui/resource.tsx";
import { Table } from "../ui/table.tsx";
import { DataText } from "../ui/text.tsx";
import { LIKELIHOODS, likelihood, tokensSummary, tokenText, tokenTitle, type Token } from "./conversation.ts";

type Page = ConsoleSchemas["TokensOut"];

export function Tokens({ turn }: { turn: string }) {
  const [offset, setOffset] = useState(0);
  const page = useResource<Page>(`/v1/calls/${encodeURIComponent(turn)}/tokens?offset=${offset}`);
  return (
    <div class="tokens stack">
      <Loaded of={page} what="the tokens">{(answer) => <Shown page={answer} onOffset={setOffset} />}</Loaded>
    </div>
  );
}

function Shown({ page, onOffset }: { page: Page; onOffset: (offset: number) => void }) {
  const [isTable, setTable] = useState(false);
  const end = page.offset + page.tokens.length;
  return (
    <>
      <p class="small muted">
        {tokensSummary(page.tokens, page.total)}{page.offset > 0 || end < page.total ? ` (${count(page.offset + 1)} to ${count(end)})` : ""}.
        {page.note !== null && <> <DataText text={page.note} /></>}
      </p>
      {!page.decoded && <Banner tone="info" title="No tokenizer of this policy is known: tokens are shown by their numbers." />}
      <Legend tokens={page.tokens} />
      <p class="drawn">{page.tokens.map((token, at) => <One key={at} token={token} />)}</p>
      <div class="row">
        {page.offset > 0 && <button type="button" class="button small" onClick={() => onOffset(Math.max(0, page.offset - page.tokens.length))}>Earlier tokens</button>}
        {end < page.total && <button type="button" class="button small" onClick={() => onOffset(end)}>Later tokens</button>}
        <button type="button" class="button quiet small" aria-expanded={isTable} onClick={() => setTable(!isTable)}>{isTable ? "Hide the table" : "As a table"}</button>
      </div>
      {isTable && <div class="tall"><Table caption="Tokens of this answer" rows={page.tokens} rowKey={(_, at) => at} columns={[
        { name: "Token", show: (token) => <span class="mono"><DataText text={JSON.stringify(tokenText(token))} /></span> },
        { name: "Number", isNumber: true, show: (token) => String(token.id) },
        { name: "Log-probability", isNumber: true, show: (token) => measure(token.logprob) },
        { name: "Learns", show: (token) => (token.learns ? "yes" : "no") },
      ]} /></div>}
    </>
  );
}

function One({ token }: { token: Token }) {
  return <span class="token" data-likely={likelihood(token)?.name} data-learns={token.learns ? "" : undefined} title={tokenTitle(token)}><DataText text={tokenText(token)} /></span>;
}

function Legend({ tokens }: { tokens: readonly Token[] }) {
  const has = new Set(tokens.map((token) => likelihood(token)?.name));
  return (
    <ul class="legend" aria-label="What shades and lines mean">
      {LIKELIHOODS.filter((one) => has.has(one.name)).map((one) => (
        <li key={one.name}><span class="token" data-likely={one.name} data-learns="">abc</span> {one.name}: {one.text}</li>
      ))}
      {tokens.some((token) => token.learns) && <li><span class="token" data-learns="">abc</span> upright: learns</li>}
      {tokens.some((token) => !token.learns) && <li><span class="token">abc</span> slanted and grey: does not learn</li>}
    </ul>
  );
}

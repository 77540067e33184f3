// Tables with real headers. The first column names its row.

import type { ComponentChildren } from "preact";

export interface Column<Row> {
  readonly name: string;
  readonly isNumber?: boolean;
  readonly show: (row: Row) => ComponentChildren;
}

export function Table<Row>({ caption, columns, rows, rowKey, isSelected }: {
  /** Read out, not shown. */
  caption: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row, index: number) => string | number;
  isSelected?: (row: Row) => boolean;
}) {
  const kind = (column: Column<Row>) => (column.isNumber === true ? "number" : undefined);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>{columns.map((column) => <th key={column.name} scope="col" class={kind(column)}>{column.name}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={rowKey(row, index)} aria-selected={isSelected?.(row) === true ? true : undefined}>
              {columns.map((column, at) => at === 0
                ? <th key={column.name} scope="row" class={kind(column)}>{column.show(row)}</th>
                : <td key={column.name} class={kind(column)}>{column.show(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

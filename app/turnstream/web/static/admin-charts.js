// Charts of the last hour, drawn without a library: each minute is a bar.

import { h } from './dom.js'

const SVG = 'http://www.w3.org/2000/svg'
const HEIGHT = 40
const BAR = 4 // the width of a bar; a gap of one follows each bar

/**
 * Returns a figure with a title and its main `value`. Each of the `series` has a name and 60 numbers, the newest last;
 * a later series is drawn over the earlier series. `format` formats a number for people.
 */
export function barChart(title, value, series, format) {
  const most = Math.max(...series.flatMap(([, numbers]) => numbers))
  const newest = series.map(([name, numbers]) => `${name} ${format(numbers.at(-1))}`).join(', ')
  const label = `${title} in each of the last 60 minutes: ${format(most)} at most; in the newest, ${newest}`
  const chart = element('svg', {
    viewBox: `0 0 ${60 * (BAR + 1)} ${HEIGHT}`,
    preserveAspectRatio: 'none',
    role: 'img',
    'aria-label': label,
  })
  for (const [name, numbers] of series)
    numbers.forEach((number, place) => chart.append(bar(name, place, number / most)))
  return h(
    'figure',
    { class: 'chart' },
    h('figcaption', {}, h('span', {}, title), h('strong', {}, value)),
    chart,
    h(
      'div',
      { class: 'scale', 'aria-hidden': 'true' },
      h('span', {}, '1 h ago'),
      h('span', {}, `most ${format(most)}`),
      h('span', {}, 'now'),
    ),
  )
}

/** `share` is relative to the highest bar. A share of 0 draws nothing, and any other share draws at least a pixel. */
function bar(name, place, share) {
  const height = share > 0 ? Math.max(1, share * HEIGHT) : 0
  const [x, y] = [place * (BAR + 1), HEIGHT - height]
  return element('rect', { class: name, x, y, width: BAR, height })
}

function element(tag, attributes) {
  const made = document.createElementNS(SVG, tag)
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
  return made
}

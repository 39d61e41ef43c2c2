// Formats numbers for people.

const COMPACT = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 })
const PRECISE = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 })

export const amount = (number) => COMPACT.format(number)

/** Formats a cost as a plain number. Its currency is the currency of the prices, which the server does not name. */
export const cost = (number) => (number === null ? '–' : PRECISE.format(number))

/** Formats a duration, which is given in seconds. */
export function span(seconds) {
  if (seconds === null) return '–'
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`
  if (seconds < 10) return `${seconds.toFixed(1)} s`
  if (seconds < 90) return `${Math.round(seconds)} s`
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`
  return seconds < 129_600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`
}

// Shows formulas in TeX as MathML. The library is loaded for the first formula; until then, the source is shown.

const MAX_LENGTH = 4_000 // characters; a longer formula stays as it was written

// With these options a formula can neither contain links, nor cover the page, nor expand macros without end.
const LIMITS = { trust: false, maxSize: [20, 500], maxExpand: 500, throwOnError: false }

/** @type {{render: Function} | null} */
let temml = null

/** Shows the formula `tex` in an element, with `display` on a line of its own. */
export async function showFormula(element, tex, display) {
  element.textContent = tex
  if (tex.length > MAX_LENGTH) return
  // Once the library is loaded, draws without a wait, because a growing answer is drawn many times.
  if (!temml)
    temml = await import('./vendor/temml.esm.js').then(
      (module) => module.default,
      () => null,
    )
  temml?.render(tex, element, { ...LIMITS, displayMode: display })
}

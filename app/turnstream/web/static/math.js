// Formulas in TeX as MathML. The library is loaded when the first one is seen; until then its source is shown.

const MAX_LENGTH = 4_000 // characters; a longer formula stays as it was written

// With these a formula neither leads anywhere, nor covers the page, nor expands macros without end.
const LIMITS = { trust: false, maxSize: [20, 500], maxExpand: 500, throwOnError: false }

/** @type {{render: Function} | null} */
let temml = null

/** Shows the formula `tex` in an element; `display`: on a line of its own. */
export async function showFormula(element, tex, display) {
  element.textContent = tex
  if (tex.length > MAX_LENGTH) return
  // Without a wait once it is loaded: a growing answer is drawn anew many times.
  if (!temml)
    temml = await import('./vendor/temml.esm.js').then(
      (module) => module.default,
      () => null,
    )
  temml?.render(tex, element, { ...LIMITS, displayMode: display })
}

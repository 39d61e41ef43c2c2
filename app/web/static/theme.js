// Sets the theme before the first paint: a later script would show a flash of the light one.
document.documentElement.dataset.theme = localStorage.getItem('turnstream.theme') ?? 'auto'

// What the grids may call by name.
var dagfuncs = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
var dagcomponentfuncs = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

dagfuncs.evokernelTheme = (base) =>
  base.withParams({
    backgroundColor: "var(--panel)",
    foregroundColor: "var(--ink)",
    borderColor: "var(--line)",
    headerBackgroundColor: "var(--page)",
    accentColor: "var(--accent)",
    browserColorScheme: "inherit",
    fontFamily: "inherit",
    fontSize: 13,
    headerFontSize: 13,
  });

dagfuncs.openCandidate = (params) => {
  if (params.event.key === "Enter" && params.data) window.location.assign("/candidate?id=" + Number(params.data.candidate));
};

dagcomponentfuncs.CandidateLink = (props) =>
  props.value === undefined || props.value === null
    ? null
    : React.createElement("a", { href: "/candidate?id=" + Number(props.value) }, String(props.value));
